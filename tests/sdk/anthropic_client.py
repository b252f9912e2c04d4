"""Runs one scenario of the official Python client and prints what came of it.

Usage: anthropic_client.py SCENARIO BASE_URL MODEL; the last line is JSON.
"""

import json
import sys
import time

import anthropic

TOOLS = [
    {
        "name": "weather",
        "description": "The weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]
PING = [{"role": "user", "content": "ping"}]


def plain(client, model):
    """One message."""
    answer = client.messages.create(model=model, max_tokens=64, messages=PING)
    return {
        "text": answer.content[0].text,
        "finish": answer.stop_reason,
        "output_tokens": answer.usage.output_tokens,
    }


def stream(client, model):
    """One streamed message, by the client's own helper."""
    text = ""
    with client.messages.stream(model=model, max_tokens=64, messages=PING) as events:
        for piece in events.text_stream:
            text += piece
        answer = events.get_final_message()
    return {"text": text, "final": answer.content[0].text, "finish": answer.stop_reason}


def tools(client, model):
    """A tool call."""
    answer = client.messages.create(
        model=model, max_tokens=64, messages=PING, tools=TOOLS, tool_choice={"type": "auto"}
    )
    call = answer.content[0]
    return {"finish": answer.stop_reason, "name": call.name, "arguments": call.input}


def stream_tools(client, model):
    """A streamed tool call, put together by the client's own helper."""
    with client.messages.stream(
        model=model, max_tokens=64, messages=PING, tools=TOOLS
    ) as events:
        answer = events.get_final_message()
    call = answer.content[0]
    return {"name": call.name, "arguments": call.input}


def error(client, model):
    """The class of the exception that a failure raises."""
    try:
        plain(client, model)
    except anthropic.APIError as raised:
        return described(raised)
    return {"class": None}


def stream_error(client, model):
    """What a stream gives before it raises."""
    text = ""
    try:
        for event in client.messages.create(
            model=model, max_tokens=64, messages=PING, stream=True
        ):
            if event.type == "content_block_delta":
                text += event.delta.text
    except anthropic.APIError as raised:
        return {**described(raised), "text": text}
    return {"class": None, "text": text}


def described(raised):
    """What a program can read from an exception."""
    response = getattr(raised, "response", None)
    body = raised.body if isinstance(raised.body, dict) else {}
    return {
        "class": type(raised).__name__,
        "is_status_error": isinstance(raised, anthropic.APIStatusError),
        "status": getattr(raised, "status_code", None),
        "type": body.get("error", {}).get("type"),
        "code": body.get("error", {}).get("code"),
        "request_id": getattr(raised, "request_id", None),
        "retry_after": response.headers.get("retry-after") if response is not None else None,
    }


def main():
    """Runs the scenario that the arguments name."""
    scenario, base_url, model = sys.argv[1:]
    retries = 2 if scenario.startswith("retry_") else 0
    key = "wrong-key" if scenario == "wrong_key" else "sdk-key"
    client = anthropic.Anthropic(
        base_url=base_url, api_key=key, max_retries=retries, timeout=30
    )
    run = {"wrong_key": error, "retry_plain": plain}.get(scenario) or globals()[scenario]
    started = time.monotonic()
    result = run(client, model)
    result["took_ms"] = round((time.monotonic() - started) * 1000)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
