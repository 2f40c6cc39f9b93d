"""Private fields of our protobuf messages: removes them before a comparison with pylance, which does not have them."""

from google.protobuf.message import Message

from lance_core.format.message_weight import is_repeated

FIRST_PRIVATE_NUMBER = 60_000


def clear_private_fields(message: Message) -> None:
    """Clear the fields of a message, and of all messages in it, that this library alone writes."""
    for field, value in message.ListFields():
        if field.number >= FIRST_PRIVATE_NUMBER:
            message.ClearField(field.name)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if is_repeated(field) else [value]:
                clear_private_fields(each)
