"""Asks every server named on the command line the same through the official OpenAI client.

    pip install openai
    python openai_client.py http://127.0.0.1:8101/v1 http://127.0.0.1:8102/v1 http://127.0.0.1:8000/v1

Fails when the client cannot read an answer, or when two servers answer differently.
"""

import sys

import openai
from openai import OpenAI
from pydantic import BaseModel

SAY = [{"role": "user", "content": "Why is the sky blue?"}]


class Person(BaseModel):
    name: str
    age: int


def chat(client, **more):
    return client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=24, seed=1, **more)


def ask(client):
    """What a server says to all of it, without names and times."""
    said = {}
    whole = chat(client)
    said["chat"] = whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24

    text, usage = "", None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        text += "".join(it.delta.content or "" for it in chunk.choices)
    assert text == said["chat"] and usage.completion_tokens == 24

    several = chat(client, n=3, temperature=1.2, frequency_penalty=0.4, logprobs=True, top_logprobs=2)
    said["several"] = [it.message.content for it in several.choices]
    said["logprobs"] = [
        [(token.token, token.logprob, [top.token for top in token.top_logprobs]) for token in it.logprobs.content]
        for it in several.choices
    ]
    assert all(len(it) == 24 for it in said["logprobs"])

    said["stop"] = chat(client, stop=[" is"]).choices[0].message.content
    assert " is" not in said["stop"]

    parsed = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Ann is 7."}], response_format=Person,
        max_tokens=200, temperature=0, extra_body={"repetition_penalty": 1.1},
    )
    said["parsed"] = parsed.choices[0].message.parsed
    assert isinstance(said["parsed"], Person)

    echo = client.completions.create(model=MODEL, prompt=["one two", "a b"], max_tokens=8, temperature=0, echo=True, n=1)
    said["echo"] = [it.text for it in echo.choices]
    ids = client.completions.create(model=MODEL, prompt=[504, 260, 253], max_tokens=8, temperature=0, logprobs=1)
    said["ids"] = (ids.choices[0].text, ids.choices[0].logprobs.tokens)

    for wrong, kind in [
        (dict(temperature=-1), openai.BadRequestError),
        (dict(n=0), openai.BadRequestError),
        (dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "odd"}}}), openai.BadRequestError),
    ]:
        try:
            chat(client, **wrong)
            raise AssertionError(f"{wrong} was taken")
        except kind as error:
            assert error.param, error
    try:
        client.chat.completions.create(model="no-such-model", messages=SAY)
        raise AssertionError("an unknown model was taken")
    except openai.NotFoundError:
        pass
    try:
        client.embeddings.create(model=MODEL, input="x")
        raise AssertionError("embeddings were made")
    except openai.BadRequestError:
        pass
    return said


answers = []
for url in sys.argv[1:]:
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    MODEL = client.models.list().data[0].id
    assert client.models.retrieve(MODEL).id == MODEL
    answers.append(ask(client))
    print(f"{url}: {MODEL}, openai {openai.__version__}: right")
assert answers and all(it == answers[0] for it in answers), "the servers say different things"
print(f"{len(answers)} servers, the same texts, for example {answers[0]['several'][0]!r}")
