"""ASCII folding: replaces characters that resemble ASCII characters by them, exactly as the reference implementation
does."""

import unicodedata

_FOLDED_LETTERS = {
    "æ": "ae",
    "ð": "d",
    "đ": "d",
    "ħ": "h",
    "\u0131": "i",
    "ĸ": "k",
    "ł": "l",
    "ŉ": "n",
    "ŋ": "n",
    "ø": "o",
    "œ": "oe",
    "ß": "ss",
    "ŧ": "t",
    "þ": "th",
    "Æ": "AE",
    "Œ": "OE",
    "Ø": "O",
    "Ħ": "H",
    "Ŋ": "N",
    "Ð": "D",
    "Þ": "TH",
    "Đ": "D",
    "Ł": "L",
    "Ŧ": "T",
    "\u1e9e": "SS",
    # Outlined letters and digits, and a small capital: the Unicode tables of some Python versions lack them.
    **{chr(0x1CCD6 + number): chr(ord("A") + number) for number in range(26)},
    **{chr(0x1CCF0 + number): str(number) for number in range(10)},
    "\ua7f1": "S",
}
"""Letters without a Unicode decomposition."""


def fold_character(character: str) -> str:
    """Return the ASCII characters that a character folds to, or the character itself.

    >>> fold_character("é"), fold_character("ß"), fold_character("я")
    ('e', 'ss', 'я')
    """
    if character.isascii():
        return character
    parts = _FOLDED_LETTERS.get(character) or unicodedata.normalize("NFKD", character)
    return (
        "".join(letter for part in parts for letter in _FOLDED_LETTERS.get(part, part) if letter.isascii()) or character
    )


class _FoldTable(dict[int, str]):
    """Translation table from each character to its folded form, filled on first use."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = fold_character(chr(code))
        return folded


_FOLD_TABLE = _FoldTable()


def fold_text(text: str) -> str:
    """Return a text with every character folded.

    >>> fold_text("naïve ﬁne")
    'naive fine'
    """
    return text.translate(_FOLD_TABLE)
