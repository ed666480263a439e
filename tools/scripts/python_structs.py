"""Structs, constants and prototypes of include/tessera.h for python/tessera, written anew where the header changed:

    python3 tools/scripts/python_structs.py include/tessera.h > python/tessera/_structs.py
"""
import re
import sys
import textwrap

SCALARS = {"int": "c_int", "int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8", "size_t": "c_size_t",
           "float": "c_float", "double": "c_double", "char": "c_char"}
HANDLES = ("tess_stream",)  # pointers, though their names do not say so
HEAD = '"""Structs, constants and prototypes of tessera.h, written by tools/scripts/python_structs.py."""'


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def enums(text):
    """(name or None, [(constant, value)]) of each enumeration."""
    for name, body in re.findall(r"\benum\s*(\w*)\s*\{([^}]*)\}", text):
        constants, value = [], -1
        for part in filter(None, (x.strip() for x in body.split(","))):
            constant, _, given = (x.strip() for x in part.partition("="))
            value = int(given, 0) if given else value + 1
            constants.append((constant, value))
        yield name or None, constants


def c_type(words, pointer, enumerations):
    """The ctypes name of a type: its words without const and struct, and whether a star follows."""
    word = [x for x in words.split() if x not in ("const", "struct")][-1]
    if pointer or word in HANDLES:
        return "c_char_p" if word == "char" else "c_void_p"
    return "c_int" if word in enumerations else SCALARS[word]


def structs(text, enumerations):
    """(name, [(field, type)]) of each public struct."""
    for name, body in re.findall(r"typedef struct (tess_\w+)\s*\{([^}]*)\}\s*\1;", text):
        fields = []
        for declaration in filter(None, (x.strip() for x in body.split(";"))):
            words, names = re.match(r"((?:const |struct )*\w+)\s*(.*)", declaration, re.S).groups()
            for declared in names.split(","):
                field, size = re.match(r"\s*\**\s*(\w+)\s*(?:\[(\d+)\])?\s*$", declared).groups()
                kind = c_type(words, "*" in declared, enumerations)
                fields.append((field, f"{kind} * {size}" if size else kind))
        yield name, fields


def functions(text, enumerations):
    """(name, type of the answer or None, [types of arguments], whether a stream comes last) of each exported one."""
    declared = re.findall(r"TESS_API\s+((?:const )?\w+)\s*(\**)\s*(tess_\w+)\s*\(([^)]*)\)\s*;", text)
    for words, star, name, arguments in declared:
        given = [x for x in arguments.split(",") if x.strip() not in ("", "void")]
        kinds = [c_type(re.sub(r"\*.*|\b\w+\s*$", "", x, flags=re.S), "*" in x, enumerations) for x in given]
        answer = None if words == "void" and not star else c_type(words, star, enumerations)
        yield name, answer, kinds, "tess_stream" in arguments


def python_name(name):
    """PatternShape of tess_pattern_shape."""
    return "".join(x.capitalize() for x in name.split("_")[1:])


def main(path):
    text = without_comments(open(path, encoding="utf-8").read())
    text = text[text.index("TESS_VERSION_MAJOR"):]
    listed = list(enums(text))
    enumerations = {name for name, _ in listed if name}
    version = re.findall(r"TESS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
    out = [f'VERSION = "{".".join(version[:3])}"']
    for name, value in re.findall(r"#define (TESS_(?!API|VERSION)\w+) (\d+)\b", text):
        out.append(f"{name} = {value}")
    for name, constants in listed:
        out.append(f"\n# {name or 'flags'}")
        out += [f"{constant} = {value}" for constant, value in constants]
    names = []
    for name, fields in structs(text, enumerations):
        names.append(name)
        out.append(f"\n\nclass {python_name(name)}(Structure):\n    _fields_ = [")
        out += [f'        ("{field}", {kind}),' for field, kind in fields]
        out.append("    ]")
    out.append("\n\nSTRUCTS = {\n" + "\n".join(f'    "{x}": {python_name(x)},' for x in names) + "\n}")
    declared = list(functions(text, enumerations))
    out.append("\n# Types of the answer and of the arguments.\nFUNCTIONS = {")
    for name, answer, kinds, _ in declared:
        out += textwrap.wrap(f'    "{name}": ({answer}, [{", ".join(kinds)}]),', 118, subsequent_indent=" " * 8)
    out.append("}\n\n# Functions whose last argument is a stream; the error is the one before it.\nSTREAMED = {")
    out += [f'    "{name}",' for name, _, _, streamed in declared if streamed]
    body = "\n".join(out) + "\n}"
    used = sorted(set(re.findall(r"\bc_\w+", body)))
    print(f'{HEAD}\nfrom ctypes import Structure, {", ".join(used)}\n\n{body}')


if __name__ == "__main__":
    main(sys.argv[1])
