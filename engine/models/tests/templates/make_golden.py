"""Writes golden.json and snippets.json: what Python's Jinja makes of the templates and snippets in this folder.

The renderer is `render_jinja_template` of the transformers library, the one that `apply_chat_template` calls, so
that the Rust test compares with what a model saw in training. The clock is fixed. To run again:

    python3 -m venv venv && venv/bin/pip install -r requirements.txt && venv/bin/python make_golden.py
"""

import copy
import datetime
import json
import pathlib

import jinja2
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 3, 7, 9, 5, 4)


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedClock

SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "additional_special_tokens": ["<extra_0>", "<extra_1>"],
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a place <now> & \"later\", aujourd'hui à Zürich.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City"},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7.5}},
                "exact": {"type": ["boolean", "null"], "default": None},
            },
            "required": ["place"],
        },
    },
}
NO_PARAMETERS = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
}

USER = {"role": "user", "content": "What is 2 < 3 && \"x\"?"}
SYSTEM = {"role": "system", "content": "You are helpful.\n"}
ANSWER = {"role": "assistant", "content": "True."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"place": "Zürich <&> 'x'", "days": [1, 2.0], "exact": None}},
        }
    ],
}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"celsius\": 21.5}"}


def case(messages, tools=None, add_generation_prompt=True, continue_final_message=False, **variables):
    return {
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "variables": variables,
    }


CASES = {
    "user": case([USER]),
    "system": case([SYSTEM, USER]),
    "no_generation_prompt": case([SYSTEM, USER, ANSWER], add_generation_prompt=False),
    "turns": case([SYSTEM, USER, ANSWER, {"role": "user", "content": "  And now?  "}]),
    "empty": case([{"role": "system", "content": ""}, {"role": "user", "content": ""}]),
    "unicode": case([{"role": "user", "content": "👩‍👩‍👧 한국 हिन्दी \u00a0\t\u2028 é 🇨🇭"}]),
    "parts": case([{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]}]),
    "tools": case([SYSTEM, USER], tools=[WEATHER, NO_PARAMETERS]),
    "tool_result": case([USER, CALL, RESULT], tools=[WEATHER]),
    "tool_turns": case([SYSTEM, USER, CALL, RESULT, ANSWER, USER], tools=[WEATHER]),
    "two_calls": case([USER, {**CALL, "tool_calls": CALL["tool_calls"] * 2}, RESULT, RESULT], tools=[WEATHER]),
    "text_arguments": case(
        [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
            },
            RESULT,
        ],
        tools=[NO_PARAMETERS],
    ),
    "thinking_on": case([USER], enable_thinking=True, thinking=True, reasoning_effort="high"),
    "thinking_off": case([USER], enable_thinking=False, thinking=False, reasoning_effort="low"),
    "thought": case(
        [USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nTrue."}, {"role": "user", "content": "Why?"}]
    ),
    "reasoning": case(
        [USER, {"role": "assistant", "content": "True.", "reasoning_content": "Hm.", "thinking": "Hm."}, USER]
    ),
    "no_messages": case([]),
    "two_users": case([USER, USER]),
    "assistant_first": case([ANSWER, USER]),
    "late_system": case([USER, ANSWER, SYSTEM, USER]),
    "odd_role": case([{"role": "wizard", "content": "hi"}]),
    "no_content": case([{"role": "user"}]),
    "null_content": case([{"role": "user", "content": None}]),
    "continue": case([USER, {"role": "assistant", "content": "The answer "}], add_generation_prompt=False,
                     continue_final_message=True),
    "date": case([USER], date_string="01 Jan 2030"),
}


def error_kind(error):
    """`raised` for the template's own raise_exception, `syntax`, or `error` for everything else Python raises."""
    if type(error) is jinja2.exceptions.TemplateError:
        return {"kind": "raised", "message": str(error)}
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
        return {"kind": "syntax", "message": str(error)}
    return {"kind": "error", "message": f"{type(error).__name__}: {error}"}


def render(template, arguments):
    arguments = copy.deepcopy(arguments)
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[arguments["messages"]],
            tools=arguments["tools"],
            chat_template=template,
            add_generation_prompt=arguments["add_generation_prompt"],
            continue_final_message=arguments["continue_final_message"],
            **{**SPECIAL_TOKENS, **arguments["variables"]},
        )
        return {"text": rendered[0]}
    except Exception as error:
        return error_kind(error)


def main():
    golden = {}
    for path in sorted(HERE.glob("*.jinja")):
        template = path.read_bytes().decode()
        by_result = {}
        for name, arguments in CASES.items():
            result = json.dumps(render(template, arguments), ensure_ascii=False)
            by_result.setdefault(result, []).append(name)
        golden[path.stem] = [{"cases": names, **json.loads(result)} for result, names in by_result.items()]
    write("golden.json", {"special_tokens": SPECIAL_TOKENS, "cases": CASES, "templates": golden})

    snippets = []
    context = json.loads((HERE / "snippet_context.json").read_text())
    for snippet in (HERE / "snippets.txt").read_bytes().decode().split("\n====\n"):
        arguments = {**case([USER]), "variables": context}
        snippets.append({"template": snippet, **render(snippet, arguments)})
    write("snippets.json", snippets)


def write(name, content):
    (HERE / name).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n")


main()
