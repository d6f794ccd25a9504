#!/usr/bin/env python3
"""Renders the templates of ../data/jinja/cases.json with python3-jinja2 and compares with the stored results.

Usage: jinja_cases.py            exit status 1 when a result differs
       jinja_cases.py --write    stores the results (of new cases: [template, "V" or "CHAT", null])

The environment is the one Hugging Face renders chat templates in: the immutable sandbox with trim_blocks,
lstrip_blocks and loop controls, tojson without ASCII escapes, raise_exception and strftime_now. The file is read by
tests/text/jinja_cases_test.cpp; a case is [template, name of its variables, result], result null where rendering
must fail.
"""

import datetime
import json
import sys
from pathlib import Path

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_700_000_000  # "now" in the file: 2023-11-14 22:13:20 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def main():
    path = Path(__file__).parent.parent / "data/jinja/cases.json"
    data = json.loads(path.read_text())
    env = environment()
    changed = 0
    for case in data["cases"]:
        text, variables, old = case
        try:
            case[2] = env.from_string(text).render(**data[variables])
        except Exception:  # whatever Python raises: the case must fail
            case[2] = None
        if case[2] != old:
            changed += 1
            print(f"{text!r}\n  stored {old!r}\n  now    {case[2]!r}")
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in data["cases"])
    head = ",\n".join(f'"{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in data.items() if k != "cases")
    if "--write" in sys.argv:
        path.write_text(f'{{{head},\n"cases": [\n{rows}\n]}}\n')
    print(f"{len(data['cases'])} cases, {changed} changed, {sum(c[2] is None for c in data['cases'])} must fail")
    sys.exit(1 if changed and "--write" not in sys.argv else 0)


if __name__ == "__main__":
    main()
