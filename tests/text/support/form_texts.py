"""Whether a text is a finished output under a schema, by its masks."""

from __future__ import annotations

import json

from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler


def matches(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: object, value: object) -> bool:
    """Return whether the masks let a value through. value: also a JSON text, as bytes."""
    text = value.decode() if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    made = compiler.matcher(StructuredOutput("json_schema", json.dumps(schema)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    if made.matcher.validate_tokens(list(ids)) < len(ids):
        return False
    made.advance(ids)
    return bool(made.matcher.is_accepting())
