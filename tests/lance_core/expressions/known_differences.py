"""Known differences: golden predicates for which lance_core deliberately differs from pylance, with the reason.

`None` stands for an error. A predicate that is not listed must give the result in `predicates.json`, and a listed one
that no longer differs fails a test too.
"""

Answer = list[int] | None

# The reference parses a prefix and ignores the rest of the text; lance_core rejects such a predicate.
_LEFTOVERS: dict[str, Answer] = {
    "id = 1_000": None,
    "id = 1 LIMIT 1": None,
    "id = 1 ORDER BY id": None,
    "id = 1 \u2013 2": None,
    "id = 1)": None,
    "id = 1; drop table t": None,
}

# Two evaluations over the same rows would differ, and a delete evaluates its predicate more than once.
_VOLATILE: dict[str, Answer] = {
    "random() < 2": None,
    "uuid() IS NOT NULL": None,
}

# json_get returns the stored binary form; json_extract and json_exists cover the same queries.
_JSON: dict[str, Answer] = {
    "json_get(js, 'b') IS NOT NULL": None,
}

# DataFusion's parser, planner or kernels reject these; the reference has its own.
_NOT_THERE: dict[str, Answer] = {
    "id << 1 = 4": None,
    "sqrt(f64) > 1": None,
    "is_valid(b)": None,
    "is_valid(i32)": None,
    "NOT regexp_match(str, '^a')": None,
    "t32ms = arrow_cast(45000000, 'Time32(Millisecond)')": None,
    "ts_ns > timestamp '2300-01-01'": None,
    "ls[1].k = 1": None,
    "CAST(str AS binary) = X'6170706c65'": None,
}

# The reference narrows a literal to a float column only at the top level; here NOT and fields follow the same rule.
_NARROWED: dict[str, Answer] = {
    "NOT f32 = 0.1": [0, 1, 3, 4, 5, 6],
    "s.f IN (0.1)": [1],
    "NOT (f32 = 0.1)": [0, 1, 3, 4, 5, 6],
}

# A decimal literal is exact.
_DECIMALS: dict[str, Answer] = {
    "dec < 1.505": [0, 1, 3, 5, 7],
    "dec < 100000000000": [0, 1, 3, 4, 5, 6, 7],
    "dec = '1.5'": [1, 7],
    "dec = '1.50'": [1, 7],
    "dec = -1.5": [3],
    "dec = 1.005": [],
    "dec = 1.5": [1, 7],
    "dec = 1.50": [1, 7],
    "dec = 1e10": [],
    "dec = 99999999.99": [4],
    "dec = CAST(1.5 AS decimal)": [1, 7],
    "dec = decimal '1.50'": [1, 7],
    "dec > 0.009": [1, 4, 5, 6, 7],
    "dec BETWEEN 0 AND 1.5": [0, 1, 5, 7],
    "dec IN (0.01)": [5],
    "dec IN (1.5, 2)": [1, 6, 7],
    "dec256 < 0.009": [0, 3],
    "dec256 = '1.50'": [1, 7],
    "dec256 = 1.5": [1, 7],
    "dec256 IN (1.5)": [1, 7],
}

# A quoted date or time has one interpretation in a comparison with a column of dates or times.
_DATES: dict[str, Answer] = {
    "d32 < '1970-01-01'": [3],
    "d32 = '2020-01-01'": [0, 5],
    "d32 BETWEEN '2020-01-01' AND '2020-12-31'": [0, 1, 5],
    "d32 IN ('2020-01-01')": [0, 5],
    "d64 = '2020-01-01'": [0, 5],
    "t32ms = '12:30:00'": [1],
    "t32s = '12:30:00'": [1],
    "t64ns > '12:00:00'": [1, 3, 4],
    "t64us = '12:30:00'": [1],
    "t64us BETWEEN '06:00:00' AND '12:30:00'": [1, 5],
    "ts_ny = '2020-01-01 07:30:00'": [1],
    "ts_ny = '2020-01-01T12:30:00Z'": [1],
    "ts_ny > '2020-01-01'": [1, 4, 5, 7],
    "ts_off = '2020-01-01T12:30:00Z'": [1],
    "ts_us < '1970-01-01'": [3],
    "ts_us = '2020-01-01 12:30:00'": [1],
    "ts_us = '2020-01-01T12:30:00'": [1],
    "ts_us > '2020-01-01'": [1, 4, 5, 7],
    "ts_us IN ('2020-01-01T00:00:00')": [0],
    "ts_utc = '2020-01-01 12:30:00'": [1],
    "ts_utc = '2020-01-01T12:30:00+00:00'": [1],
    "ts_utc = '2020-01-01T12:30:00Z'": [1],
}

# A number outside the range of the column is compared as a number.
_BEYOND: dict[str, Answer] = {
    "i64 < 9223372036854775808": [0, 1, 3, 4, 5, 6, 7],
    "i64 = -9223372036854775808": [3],
    "i64 = 9223372036854775808": [],
    "i8 < 200": [0, 1, 3, 4, 5, 6, 7],
    "i8 = 1.0": [1],
    "i8 = 200": [],
    "i8 > -1000": [0, 1, 3, 4, 5, 6, 7],
    "i8 BETWEEN -1000 AND 1000": [0, 1, 3, 4, 5, 6, 7],
    "i8 IN (1, 300)": [1],
    "id = 1e0": [1],
    "u8 = -1": [],
    "u8 > -1": [0, 1, 3, 4, 5, 6, 7],
}

# Column names within functions are resolved like all others.
_SPELLING: dict[str, Answer] = {
    "ABS(ID) = 3": [3],
    "abs(mixed) = 3": [3],
    "lower(STR) = 'apple'": [1, 3],
}

# SQL that DataFusion parses and the reference does not.
_SYNTAX: dict[str, Answer] = {
    "i32 <=> 1": [1],
    "i32 <=> NULL": [2],
    "id & 1 = 1": [1, 3, 5, 7],
    "id = +3": [3],
    "id ^ 1 = 2": [3],
    "id | 1 = 3": [2, 3],
    "floor(f64) = 1": [1],
    "b IS NOT UNKNOWN": [0, 1, 3, 4, 5, 7],
    "b IS UNKNOWN": [2, 6],
    "case when b then id > 3 else id < 2 end": [1, 5],
    "position('p' in str) = 2": [1, 3],
    "str !~ '^a'": [0, 3, 5, 6],
    "str SIMILAR TO 'a%'": [4],
    "str ~ '^a'": [1, 4, 7],
    "str ~* '^a'": [1, 3, 4, 7],
    "substr(str, 1, 1) = 'a'": [1, 4, 7],
    "substring(str from 2 for 2) = 'pp'": [1, 3],
    "substring(str, 1, 1) = 'a'": [1, 4, 7],
    "trim(str) = 'apple'": [1],
    "d32 > date '2020-01-01' + interval '1' day": [4, 7],
    "extract(year from d32) = 2020": [0, 1, 5],
    "ts_us = timestamp '2020-01-01 12:30:00' AT TIME ZONE 'UTC'": [1],
    "ts_utc = timestamp with time zone '2020-01-01 12:30:00Z'": [1],
    "m['a'] = 1": [0, 6],
    "CAST(id AS char) = '3'": [3],
    "CAST(id AS real) = 3": [3],
    "CAST(id AS text) = '3'": [3],
    "CAST(id AS time) = '3'": [3],
    "CAST(id AS varchar(5)) = '3'": [3],
    "CAST(id AS varchar) = '3'": [3],
    "(id, i8) = (1, 1)": [1],
    "(id, i8) IN ((1, 1))": [1],
    "id = ANY(l)": [5],
    "CASE WHEN id = 1 THEN 1 ELSE 0 END = 1": [1],
    "CASE id WHEN 1 THEN true WHEN 2 THEN NULL ELSE false END": [1],
}

DIFFERENCES: dict[str, Answer] = {
    **_LEFTOVERS,
    **_VOLATILE,
    **_JSON,
    **_NOT_THERE,
    **_NARROWED,
    **_DECIMALS,
    **_DATES,
    **_BEYOND,
    **_SPELLING,
    **_SYNTAX,
}
