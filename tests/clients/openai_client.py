"""Asks every server named on the command line the same through the official OpenAI client.

    pip install openai
    python openai_client.py http://127.0.0.1:8101/v1 http://127.0.0.1:8102/v1

Fails when the client cannot read an answer, or when two servers answer differently."""

import asyncio
import json
import sys

import openai

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def refused(error, ask):
    try:
        ask()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def chats(client, model):
    request = {"model": model, "messages": MESSAGES, "max_tokens": 24, "seed": 1}
    whole = client.chat.completions.create(**request)
    text = whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24
    streamed, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**request, stream=True, stream_options=options):
        usage = chunk.usage or usage
        streamed += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert streamed == text and usage.completion_tokens == 24
    several = client.chat.completions.create(**request, n=2, temperature=1.2)
    known = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
    tokens = known.choices[0].logprobs.content
    assert len(tokens) == 24 and "".join(it.token for it in tokens) == text
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**request, top_p=2))
    other = request | {"model": "no"}
    refused(openai.NotFoundError, lambda: client.chat.completions.create(**other))
    return text, [it.message.content for it in several.choices]


def formats(client, model):
    schema = {"name": "person", "schema": PERSON}
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Describe Ann, 7."}], max_tokens=64,
        temperature=0, response_format={"type": "json_schema", "json_schema": schema},
    )
    text = answer.choices[0].message.content
    assert set(json.loads(text)) == {"name", "age"}
    return text


def completions(client, model):
    answer = client.completions.create(
        model=model, prompt=["one two one two", [28, 905, 18]], max_tokens=8, temperature=0, logprobs=1,
    )
    assert all(len(it.logprobs.tokens) == 8 for it in answer.choices)
    return [it.text for it in answer.choices]


async def at_once(url, model):
    """Eight streams, of which one is given up."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def one(seed):
            stream = await client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=16, seed=seed, stream=True
            )
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if seed == 7 and text:
                    await stream.close()
                    return ""
            return text

        return await asyncio.gather(*(one(seed) for seed in range(8)))


def main():
    answers = []
    for url in sys.argv[1:]:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        parts = [chats(client, model), formats(client, model), completions(client, model)]
        answers.append([*parts, asyncio.run(at_once(url, model))])
        print(f"{url}: {model}: right")
    assert all(it == answers[0] for it in answers), answers
    print(f"openai {openai.__version__}: {len(answers)} servers, the same texts")


main()
