"""Runs one scenario of the official Python client and prints what came of it.

Usage: openai_client.py SCENARIO BASE_URL MODEL; the last line is JSON.
"""

import json
import sys
import time

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PING = [{"role": "user", "content": "ping"}]


def plain(client, model):
    """One chat completion."""
    answer = client.chat.completions.create(model=model, messages=PING)
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "total_tokens": answer.usage.total_tokens,
    }


def stream(client, model):
    """One streamed chat completion."""
    text, finish, chunks = "", None, 0
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=model, messages=PING, stream=True, stream_options=options
    ):
        chunks += 1
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return {"text": text, "finish": finish, "chunks": chunks}


def tools(client, model):
    """A tool call, its result, and the tools of the request."""
    answer = client.chat.completions.create(
        model=model, messages=PING, tools=TOOLS, tool_choice="auto"
    )
    call = answer.choices[0].message.tool_calls[0]
    return {
        "finish": answer.choices[0].finish_reason,
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
    }


def stream_tools(client, model):
    """A streamed tool call, put together by the client's own helper."""
    with client.chat.completions.stream(model=model, messages=PING, tools=TOOLS) as events:
        for _ in events:
            pass
        answer = events.get_final_completion()
    call = answer.choices[0].message.tool_calls[0]
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments)}


def responses(client, model):
    """One response."""
    answer = client.responses.create(model=model, input="ping")
    return {"text": answer.output_text, "status": answer.status}


def responses_stream(client, model):
    """One streamed response, by the client's own helper."""
    kinds = []
    with client.responses.stream(model=model, input="ping") as events:
        for event in events:
            kinds.append(event.type)
        answer = events.get_final_response()
    return {"text": answer.output_text, "status": answer.status, "kinds": kinds}


def embeddings(client, model):
    """One embedding."""
    answer = client.embeddings.create(model=model, input=["ping"], encoding_format="float")
    return {"vector": answer.data[0].embedding}


def models(client, _model):
    """The list of models."""
    return {"ids": [one.id for one in client.models.list()]}


def error(client, model):
    """The class of the exception that a failure raises."""
    try:
        plain(client, model)
    except openai.APIError as raised:
        return described(raised)
    return {"class": None}


def stream_error(client, model):
    """What a stream gives before it raises."""
    text = ""
    try:
        for chunk in client.chat.completions.create(model=model, messages=PING, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
    except openai.APIError as raised:
        return {**described(raised), "text": text}
    return {"class": None, "text": text}


def responses_stream_error(client, model):
    """What a streamed response gives before it fails."""
    text, kinds = "", []
    try:
        for event in client.responses.create(model=model, input="ping", stream=True):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    except openai.APIError as raised:
        return {**described(raised), "text": text, "kinds": kinds}
    return {"class": None, "text": text, "kinds": kinds}


def described(raised):
    """What a program can read from an exception."""
    response = getattr(raised, "response", None)
    return {
        "class": type(raised).__name__,
        "is_status_error": isinstance(raised, openai.APIStatusError),
        "status": getattr(raised, "status_code", None),
        "code": raised.code,
        "type": raised.type,
        "message": raised.message,
        "request_id": getattr(raised, "request_id", None),
        "retry_after": response.headers.get("retry-after") if response is not None else None,
    }


def main():
    """Runs the scenario that the arguments name."""
    scenario, base_url, model = sys.argv[1:]
    retries = 2 if scenario.startswith("retry_") else 0
    key = "wrong-key" if scenario == "wrong_key" else "sdk-key"
    client = openai.OpenAI(
        base_url=base_url + "/v1", api_key=key, max_retries=retries, timeout=30
    )
    run = {"wrong_key": error, "retry_plain": plain}.get(scenario) or globals()[scenario]
    started = time.monotonic()
    result = run(client, model)
    result["took_ms"] = round((time.monotonic() - started) * 1000)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
