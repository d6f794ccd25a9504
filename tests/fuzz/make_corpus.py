#!/usr/bin/env python3
"""Writes the seed corpora of the fuzz targets: small valid files, and damaged copies of them.

Usage: make_corpus.py [FOLDER]    (default: corpus/ beside this script)
The result depends on this script only, so a changed seed shows up as a difference in version control.
"""

import json
import struct
import sys
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q",
           F64: "d"}
EXTREMES = (0, 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Gguf:
    """GGUF bytes; remembers where the length and count fields are."""

    def __init__(self, version=3):
        self.version = version
        self.keys, self.infos, self.data = [], [], b""

    def key(self, name, kind, value):
        self.keys.append((name, kind, value))

    def tensor(self, name, dims, kind, data):
        self.data += b"\0" * (-len(self.data) % 32)
        self.infos.append((name, dims, kind, len(self.data)))
        self.data += data

    def build(self):
        out, fields = bytearray(b"GGUF" + struct.pack("<I", self.version)), []

        def field(fmt, value, name):
            fields.append((name, len(out), fmt))
            out.extend(struct.pack("<" + fmt, value))

        def string(text, name):
            field("Q", len(text), name + "-length")
            out.extend(text)

        def payload(kind, value, name):
            if kind == STRING:
                string(value, name)
            elif kind == ARRAY:
                element, values = value
                field("I", element, name + "-element")
                field("Q", len(values), name + "-count")
                for v in values:
                    payload(element, v, name + "-item") if element == STRING else out.extend(
                        struct.pack("<" + FORMATS[element], v))
            else:
                out.extend(struct.pack("<" + FORMATS[kind], value))

        field("Q", len(self.infos), "tensors")
        field("Q", len(self.keys), "keys")
        for name, kind, value in self.keys:
            string(name.encode(), "key")
            field("I", kind, "value-type")
            payload(kind, value, name)
        for name, dims, kind, offset in self.infos:
            string(name.encode(), "name")
            field("I", len(dims), "rank")
            for dim in dims:
                field("Q", dim, "dim")
            field("I", kind, "type")
            field("Q", offset, "offset")
        if self.infos:
            out.extend(b"\0" * (-len(out) % 32))
        return bytes(out) + self.data, fields


def all_types():
    g = Gguf()
    g.key("general.architecture", STRING, b"gemma4")
    g.key("general.alignment", U32, 32)
    g.key("general.quantization_version", U32, 2)
    for kind in FORMATS:
        g.key(f"scalar.{kind}", kind, 1)
        g.key(f"array.{kind}", ARRAY, (kind, [0, 1, 1]))
    g.key("tokenizer.ggml.tokens", ARRAY, (STRING, [b"<bos>", b"\xff\xfe", b""]))
    g.tensor("token_embd.weight", [32, 2], 8, bytes(68))
    g.tensor("blk.0.attn_norm.weight", [4], 0, struct.pack("<4f", 1, 2, 3, 4))
    g.tensor("blk.0.ffn_gate_exps.weight", [2, 3, 2], 1, bytes(24))
    return g


def tiny():
    g = Gguf()
    g.key("general.architecture", STRING, b"x")
    g.key("a", ARRAY, (STRING, [b"p", b"q"]))
    g.key("b", ARRAY, (U16, [1, 2, 3]))
    g.tensor("w", [3, 2], 0, bytes(24))
    g.tensor("v", [2], 30, bytes(4))
    return g


def gguf_corpus():
    full, _ = all_types().build()
    yield "all_types", full
    v2 = tiny()
    v2.version = 2
    yield "version_2", v2.build()[0]
    empty = Gguf()
    yield "empty", empty.build()[0]
    no_tensors = Gguf()
    no_tensors.key("general.architecture", STRING, b"x")
    yield "no_tensors", no_tensors.build()[0]
    shard = tiny()
    shard.key("split.no", U16, 1)
    shard.key("split.count", U16, 2)
    shard.key("split.tensors.count", I32, 4)
    yield "shard", shard.build()[0]

    small, fields = tiny().build()
    yield "tiny", small
    yield "big_endian", small[:4] + struct.pack(">I", 3) + small[8:]
    yield "version_1", small[:4] + struct.pack("<I", 1) + small[8:]
    for cut in range(0, len(small), 13):
        yield f"cut_{cut}", small[:cut]
    for index, (name, at, fmt) in enumerate(fields):
        for extreme in EXTREMES:
            if extreme >= 1 << (8 * struct.calcsize(fmt)):
                continue
            field = struct.pack("<" + fmt, extreme)
            yield f"field_{index}_{name}_{extreme:x}", small[:at] + field + small[at + len(field):]
    for name, change in {
            "duplicate_name": lambda g: g.tensor("w", [2], 0, bytes(8)),
            "duplicate_key": lambda g: g.key("a", U8, 0),
            "alignment_string": lambda g: g.key("general.alignment", STRING, b"32"),
            "alignment_3": lambda g: g.key("general.alignment", U32, 3),
            "alignment_huge": lambda g: g.key("general.alignment", U32, 1 << 31),
            "quantised_without_version": lambda g: g.tensor("q", [32], 2, bytes(18)),
            "bool_2": lambda g: g.key("bool", BOOL, 2),
            "misaligned": lambda g: g.infos.__setitem__(1, ("v", [2], 30, 25)),
            "overlapping": lambda g: g.infos.__setitem__(1, ("v", [2], 30, 0)),
    }.items():
        g = tiny()
        change(g)
        yield name, g.build()[0]


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_corpus():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    types = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
             "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for dtype, size in types.items():
        header[f"t.{dtype}"] = entry(dtype, [3], end, end + 3 * size)
        end += 3 * size
    yield "all_types", safetensors(header, bytes(end))

    good = {"a": entry("F32", [2, 2], 0, 16), "b": entry("BF16", [], 16, 18), "c": entry("I8", [0, 5], 18, 18)}
    whole = safetensors(good, bytes(18))
    yield "small", whole
    yield "empty", safetensors({}, b"")
    yield "no_data_object", safetensors({"__metadata__": {}}, b"")
    yield "f4", safetensors({"a": entry("F4", [8], 0, 4)}, bytes(4))
    for cut in range(0, len(whole), 9):
        yield f"cut_{cut}", whole[:cut]
    for extreme in EXTREMES + (100_000_000, 100_000_001, len(whole) - 8, len(whole) - 7):
        yield f"length_{extreme:x}", struct.pack("<Q", extreme) + whole[8:]
    values = EXTREMES + (-1, 1.5, 1e400, "4", None, [], {}, True)
    for i, value in enumerate(values):
        yield f"dim_{i}", safetensors({"a": entry("F32", [2, value], 0, 16)}, bytes(16))
        yield f"begin_{i}", safetensors({"a": entry("F32", [4], value, 16)}, bytes(16))
        yield f"end_{i}", safetensors({"a": entry("F32", [4], 0, value)}, bytes(16))
        yield f"dtype_{i}", safetensors({"a": entry(value, [4], 0, 16)}, bytes(16))
        yield f"entry_{i}", safetensors({"a": value}, bytes(16))
        yield f"metadata_{i}", safetensors({"__metadata__": {"x": value}}, b"")
    yield "zero_times_huge", safetensors({"a": entry("F32", [0, 1 << 62, 1 << 62], 0, 0)}, b"")
    yield "hole", safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)}, bytes(5))
    yield "overlap", safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3))
    yield "rest", safetensors({"a": entry("U8", [2], 0, 2)}, bytes(5))
    yield "rank_5", safetensors({"a": entry("U8", [1] * 5, 0, 1)}, bytes(1))
    one = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    yield "duplicate", safetensors(b"{" + one + b"," + one + b"}", bytes(1))
    yield "duplicate_field", safetensors(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', bytes(1))
    yield "duplicate_metadata", safetensors(b'{"__metadata__":{"a":"1","a":"2"}}', b"")
    yield "nul", safetensors(b'{}\0{"a":1}', b"")
    yield "not_utf8", safetensors(b'{"\xff":' + one[4:] + b"}", bytes(1))
    yield "surrogate", safetensors(b'{"\\ud800":' + one[4:] + b"}", bytes(1))
    yield "deep", safetensors(b"{" + b'"a":[' + b"[" * 500, b"")
    yield "comment", safetensors(b"{/**/}", b"")
    yield "two_objects", safetensors(b"{}{}", b"")


def tokenizer_character(merges=(("a", "b"), ("ab", "c"))):
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += ["\u2581", "a", "b", "c", "ab", "abc"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, pieces[i]) for i in range(4)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {p: i for i, p in enumerate(pieces)}, "merges": [list(m) for m in merges]},
    }


def added(index, content):
    return {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def byte_alphabet():
    """The printable stand-ins of byte-level BPE, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def tokenizer_bytes():
    bos, eos = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
    alphabet = byte_alphabet()
    pieces = [bos, eos] + [alphabet[b] for b in range(256)] + ["th", "the", "\u0120the"]
    han = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    words = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
             " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    splits = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
              for r in ("\\p{N}{1,3}", han, words)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(0, bos), added(1, eos)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits + [byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {p: i for i, p in enumerate(pieces)},
                  "merges": [["t", "h"], ["th", "e"], ["\u0120", "the"]]},
    }


def damaged_tokenizers(make):
    def changed(change):
        t = make()
        change(t)
        return t

    vocab = lambda t: t["model"]["vocab"]
    yield "id_negative", changed(lambda t: vocab(t).update({"zz": -1}))
    yield "id_huge", changed(lambda t: vocab(t).update({"zz": 1 << 40}))
    yield "id_sparse", changed(lambda t: vocab(t).update({"zz": 2_000_000_000}))
    yield "id_twice", changed(lambda t: vocab(t).update({"zz": 5}))
    yield "id_string", changed(lambda t: vocab(t).update({"zz": "5"}))
    yield "piece_empty", changed(lambda t: vocab(t).update({"": len(vocab(t))}))
    yield "vocab_empty", changed(lambda t: t["model"].update(vocab={}))
    yield "vocab_array", changed(lambda t: t["model"].update(vocab=[1, 2]))
    yield "merge_unknown", changed(lambda t: t["model"]["merges"].append(["zz", "yy"]))
    yield "merge_result_unknown", changed(lambda t: t["model"]["merges"].append(["a", "a"]))
    yield "merge_of_three", changed(lambda t: t["model"]["merges"].append(["a", "b", "c"]))
    yield "merge_number", changed(lambda t: t["model"]["merges"].append(1))
    yield "merge_string", changed(lambda t: t["model"].update(merges=["a b"]))
    yield "merge_no_blank", changed(lambda t: t["model"].update(merges=["ab"]))
    yield "merges_null", changed(lambda t: t["model"].update(merges=None))
    yield "no_model", changed(lambda t: t.pop("model"))
    yield "model_unigram", changed(lambda t: t["model"].update(type="Unigram"))
    yield "added_out_of_range", changed(lambda t: t["added_tokens"].append(added(1 << 33, "<x>")))
    yield "added_negative", changed(lambda t: t["added_tokens"].append(added(-5, "<x>")))
    yield "added_empty", changed(lambda t: t["added_tokens"].append(added(1, "")))
    yield "added_clash", changed(lambda t: t["added_tokens"].append(added(1, "a")))
    yield "added_object", changed(lambda t: t.update(added_tokens={}))
    yield "normalizer_unknown", changed(lambda t: t.update(normalizer={"type": "NFKC"}))
    yield "pre_tokenizer_unknown", changed(lambda t: t.update(pre_tokenizer={"type": "Whitespace"}))
    yield "normalizer_number", changed(lambda t: t.update(normalizer=3))


def tokenizer_corpus():
    for scheme, make in (("character", tokenizer_character), ("bytes", tokenizer_bytes)):
        text = json.dumps(make(), ensure_ascii=False, separators=(",", ":")).encode()
        yield scheme, text
        for i in range(1, 6):
            yield f"{scheme}_cut_{i}", text[:len(text) * i // 6]
        for name, damaged in damaged_tokenizers(make):
            yield f"{scheme}_{name}", json.dumps(damaged, ensure_ascii=False, separators=(",", ":")).encode()
    yield "empty", b""
    yield "empty_object", b"{}"
    yield "deep", b'{"model":' + b"[" * 2000
    yield "not_utf8", b'{"model":"\xff"}'


def template_corpus():
    yield "loops", b"{% for m in messages %}{{ loop.index }}{{ m.role }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
    yield "macro", b"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"
    yield "forever", b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
    yield "doubling", b"{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    yield "shared", b"{% set n = namespace(s=[]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}"
    yield "ring", b"{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.l }}{% for x in xs %}{% set n.m = loop %}{{ loop.changed(loop) }}{% endfor %}{{ n.m.index }}"
    yield "space", b" {%- set x = 1 -%} \n{# c #}\n {%+ if x %}{% raw %}{{{% endraw %}{% endif +%}\n"
    yield "filters", b"{{ xs | sort | map('string') | join(',') | upper | replace('1', s) }}{{ d | dictsort | tojson(indent=2) }}{{ s[::-1] }}{{ '%5s' % s }}"
    yield "deep_list", b"{{ " + b"[" * 300
    yield "deep_not", b"{{ " + b"not " * 3000 + b"x }}"
    yield "deep_if", b"{% if x %}" * 500
    yield "long_sum", b"{{ 1" + b"+1" * 2000 + b" }}"
    yield "range", b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    yield "repeat", b"{{ 'ab' * 99999999999 }}{{ 9 ** 999999999 }}"
    yield "overflow", b"{{ 9223372036854775807 + 1 }}{{ xs[-9223372036854775807:] }}{{ 1 // -1 }}"
    yield "call", b"{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}{{ caller }}"
    yield "format", b"{{ '{:>99999999}'.format(1) }}{{ '%999999999d' % 1 }}{{ strftime_now('%9999999Y') }}"


def parser_corpus():
    gemma, deepseek = 2, 0  # bits of the first byte; 1 streams, 4 spells, 8 has a prompt, 16 is complete
    for flags in (0, 1, 16, 17):
        yield f"gemma_call_{flags}", bytes([gemma | flags]) + b"hi\x02call:f{a:\x04Os{lo\x04,b:[1,{c:null}],d:\"q\\\"\"}\x03\x05"
        yield f"deepseek_call_{flags}", bytes([flags]) + (
            b"hi\n\n<\x02tool_calls>\n<\x02invoke name=\"f\">\n<\x02parameter name=\"a\" string=\"true\">x</y</\x02parameter>\n"
            b"<\x02parameter name=\"b\" string=\"false\">[1]</\x02parameter>\n</\x02invoke>\n</\x02tool_calls>\x03")
    yield "gemma_channels", bytes([gemma | 1]) + b"\x00thought\n\nwhy\n\x01so\x00x\x02call:f{\x00"
    yield "gemma_broken", bytes([gemma | 1]) + b"\x02call:f{a:[[[[[[1\x02call:f{a:1,a:2}\x02call:\x03\x02f{}"
    yield "gemma_spelled", bytes([gemma | 5]) + b"a<|tool_call>call:f{a:<|\"|><|tool_cal<|\"|>}<tool_call|><|tool"
    yield "deepseek_broken", bytes([9]) + b"r<\x02tool_calls><\x02invoke name=\"\"><\x02invoke name=\"f\">junk<\x02parameter name=\"a\">1<\x02zzz></\x02"
    yield "deepseek_spelled", bytes([5]) + "a</think><｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"></｜DSML｜invoke>".encode()
    yield "bad_utf8", bytes([gemma]) + b"\xf0\x9f\x98\xff\x02call:\xe2\x82{\xc3:\xf5\xff}\x03\xe2"


def gbnf_corpus():
    yield "everything", b'root ::= (a | [^b-d\\n]{1,3} # c\n | "x\\u00e9")* .? <[1]>? !<[5]>\na ::= "a" root "b" |\n  "q"+\n'
    yield "left_recursion", b'root ::= e root "a" | "b"\ne ::= "x"?\n'
    yield "endless", b'root ::= "a" r | "b"\nr ::= "c" r\n'
    yield "ambiguous", b'root ::= "x" root "y" | "x" r "z" | "m"\nr ::= "x" root "w" | "x" r "v" | "m"\n'
    yield "nullable_loops", b'root ::= ((("a"?)*)+ r*){0,9}\nr ::= ("b"* | )*\n'
    yield "repetition", b'root ::= (([a-z] "b"){1,9999} "c"){1,9999}\n'
    yield "frames", b'root ::= a "."\n' + b"".join(b"a%s ::= a%s \"x\"\n" % (b"b" * i, b"b" * (i + 1)) for i in range(12)) + b'abbbbbbbbbbbb ::= "y" root?\n'
    yield "groups", b"root ::= " + b"(" * 400
    yield "wide", 'root ::= [é-\U0010ffff]{2} [^\u0800-\U00010000] "\\U0001F600"\n'.encode()
    yield "not_utf8", b'root ::= "\xff"'


def schema_corpus():
    def dump(schema):
        return json.dumps(schema, separators=(",", ":")).encode()

    yield "object", dump({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, "x", [2]]},
                          "c": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "required": ["b"]})
    yield "map", dump({"properties": {"ab": True}, "additionalProperties": {"type": ["null", "number"]}})
    yield "numbers", dump({"anyOf": [{"type": "integer", "minimum": -12, "exclusiveMaximum": 105}, {"type": "number", "minimum": 0.05, "maximum": 2.5}]})
    yield "pattern", dump({"pattern": "^(a|[^b\\d]{2,3})*\\s?$", "minLength": 1, "maxLength": 6})
    yield "all_of", dump({"allOf": [{"properties": {"a": {"minimum": 1}}, "required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]})
    yield "one_of", dump({"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(3)]})
    yield "tuple", dump({"prefixItems": [{"format": "date"}, {"format": "uuid"}], "items": False, "minItems": 1})
    yield "ref_loop", dump({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}})
    yield "keys", dump({"type": "object", "additionalProperties": True, "propertyNames": {"enum": ["a", "\n"]}, "maxProperties": 2})
    yield "many", dump({"enum": list(range(300))})
    yield "product", dump({"allOf": [{"anyOf": [{"minimum": 1}, {"maximum": 2}]}] * 24})
    yield "deep", b'{"items":' * 400
    yield "huge", dump({"minLength": 1e300, "maxItems": 1 << 70})


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "corpus"
    for target, corpus in (("gguf_fuzz", gguf_corpus()), ("safetensors_fuzz", safetensors_corpus()),
                           ("tokenizer_fuzz", tokenizer_corpus()), ("template_fuzz", template_corpus()),
                           ("parser_fuzz", parser_corpus()), ("gbnf_fuzz", gbnf_corpus()),
                           ("schema_fuzz", schema_corpus())):
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for name, data in corpus:
            (folder / name).write_bytes(data)
            count += 1
        print(f"{folder}: {count} files")


if __name__ == "__main__":
    main()
