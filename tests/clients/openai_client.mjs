// Asks every server named on the command line the same through the official OpenAI client.
//
//     npm install openai
//     node openai_client.mjs http://127.0.0.1:8101/v1 http://127.0.0.1:8102/v1
//
// Fails when the client cannot read an answer, or when two servers answer differently.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const messages = [{ role: "user", content: "Why is the sky blue?" }];

async function ask(client, model) {
  const request = { model, messages, max_tokens: 24, seed: 1 };
  const whole = await client.chat.completions.create(request);
  const text = whole.choices[0].message.content;
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 24);

  let streamed = "";
  let usage;
  const stream = await client.chat.completions.create({
    ...request, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(streamed, text);
  assert.equal(usage.completion_tokens, 24);

  const runner = client.chat.completions.stream({ ...request, n: 2, temperature: 1.2 });
  const several = (await runner.finalChatCompletion()).choices.map((it) => it.message.content);

  const completion = await client.completions.create({
    model, prompt: "one two one two", max_tokens: 8, temperature: 0, logprobs: 1, echo: false,
  });
  await assert.rejects(client.chat.completions.create({ ...request, top_p: 2 }), OpenAI.BadRequestError);
  await assert.rejects(client.chat.completions.create({ ...request, model: "no" }), OpenAI.NotFoundError);
  return { text, several, plain: completion.choices[0].text };
}

const answers = [];
for (const baseURL of process.argv.slice(2)) {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const model = (await client.models.list()).data[0].id;
  answers.push(await ask(client, model));
  console.log(`${baseURL}: ${model}: right`);
}
for (const answer of answers) assert.deepEqual(answer, answers[0]);
console.log(`openai ${VERSION}: ${answers.length} servers, the same texts`);
