import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { key, markup, model, personSchema, url, weather, weatherQuestion, weatherResult } from './common.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const define = [{ role: 'user', content: 'Define hope.' }];
const tools = [{ type: 'function', function: weather }];

test('models are listed', async () => {
  const list = await client.models.list();
  assert.deepEqual(list.data.map((m) => m.id), [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test('chat answers, with usage and timings', async () => {
  const reply = await client.chat.completions.create({ model, messages: define, temperature: 0, max_tokens: 40 });
  const [choice] = reply.choices;
  assert.ok(choice.message.content.length > 5);
  assert.doesNotMatch(choice.message.content, markup);
  assert.ok(['stop', 'length'].includes(choice.finish_reason));
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.ok(reply.usage.completion_tokens >= 1 && reply.usage.completion_tokens <= 40);
  assert.ok(reply.timings.predicted_per_second >= 0);
});

test('a stream gives the same text as a whole reply, and its usage', async () => {
  const request = { model, messages: define, temperature: 0, max_tokens: 40 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request, stream: true, stream_options: { include_usage: true } });
  let text = '';
  let usage = null;
  let finish = null;
  const ids = new Set();
  for await (const chunk of stream) {
    ids.add(chunk.id);
    if (chunk.usage) usage = chunk.usage;
    if (!chunk.choices.length) continue;
    text += chunk.choices[0].delta.content ?? '';
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, whole.choices[0].finish_reason);
  assert.equal(ids.size, 1);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
});

test('the second request finds the prompt in the cache', async () => {
  const long = [{ role: 'user', content: 'In the beginning God created the heaven and the earth. '.repeat(60) + 'Define hope.' }];
  const request = { model, messages: long, temperature: 0, max_tokens: 4 };
  const first = await client.chat.completions.create(request);
  const second = await client.chat.completions.create(request);
  assert.equal(second.choices[0].message.content, first.choices[0].message.content);
  assert.ok(second.usage.prompt_tokens_details.cached_tokens > 0);
});

test('tools: call, result, answer', async () => {
  const messages = [{ role: 'user', content: weatherQuestion }];
  const reply = await client.chat.completions.create({ model, messages, tools, temperature: 0, max_tokens: 100 });
  assert.equal(reply.choices[0].finish_reason, 'tool_calls');
  const call = reply.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, 'get_weather');
  assert.match(JSON.parse(call.function.arguments).city, /Oslo/);
  messages.push(reply.choices[0].message);
  messages.push({ role: 'tool', tool_call_id: call.id, content: JSON.stringify(weatherResult) });
  const answer = await client.chat.completions.create({ model, messages, tools, temperature: 0, max_tokens: 60 });
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.doesNotMatch(answer.choices[0].message.content, markup);
});

test('streamed tool calls come together', async () => {
  const stream = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: weatherQuestion }], tools, temperature: 0, max_tokens: 100, stream: true });
  let name = '';
  let id = '';
  let args = '';
  let finish = null;
  for await (const chunk of stream) {
    const part = chunk.choices[0]?.delta.tool_calls?.[0];
    if (part) {
      assert.equal(part.index, 0);
      id ||= part.id ?? '';
      name ||= part.function?.name ?? '';
      args += part.function?.arguments ?? '';
    }
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(name, 'get_weather');
  assert.match(id, /^call_/);
  assert.match(JSON.parse(args).city, /Oslo/);
  assert.equal(finish, 'tool_calls');
});

test('a required call is made whatever is asked', async () => {
  const reply = await client.chat.completions.create({
    model, messages: define, tools, tool_choice: 'required', temperature: 0, max_tokens: 120 });
  assert.equal(reply.choices[0].message.tool_calls[0].function.name, 'get_weather');
  assert.equal(typeof JSON.parse(reply.choices[0].message.tool_calls[0].function.arguments).city, 'string');
});

test('a JSON schema is followed', async () => {
  const reply = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: 'Describe a person.' }], temperature: 0, max_tokens: 200,
    response_format: { type: 'json_schema', json_schema: { name: 'person', schema: personSchema, strict: true } } });
  const person = JSON.parse(reply.choices[0].message.content);
  assert.deepEqual(Object.keys(person).sort(), ['age', 'name']);
  assert.ok(Number.isInteger(person.age));
});

test('the zod helper parses', async () => {
  const shape = z.object({ yes: z.boolean(), word: z.enum(['alpha', 'beta']) });
  const reply = await client.chat.completions.parse({
    model, messages: define, temperature: 0, max_tokens: 100, response_format: zodResponseFormat(shape, 'shape') });
  assert.equal(typeof reply.choices[0].message.parsed.yes, 'boolean');
});

test('json_object gives an object', async () => {
  const reply = await client.chat.completions.create({
    model, messages: define, temperature: 0, max_tokens: 300, response_format: { type: 'json_object' } });
  if (reply.choices[0].finish_reason === 'stop') {
    assert.equal(typeof JSON.parse(reply.choices[0].message.content), 'object');
  }
});

test('reasoning comes in its own field', async () => {
  const reply = await client.chat.completions.create({
    model, messages: define, temperature: 0, max_tokens: 200, reasoning_effort: 'high' });
  const { message } = reply.choices[0];
  assert.ok((message.reasoning_content ?? '').length > 0);
  assert.doesNotMatch(message.content ?? '', markup);
  assert.doesNotMatch(message.reasoning_content, markup);
  assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 0);
});

test('logprobs, n, seed, stop, logit_bias', async () => {
  const reply = await client.chat.completions.create({
    model, messages: define, temperature: 1, seed: 7, n: 3, max_tokens: 8, logprobs: true, top_logprobs: 3 });
  assert.equal(reply.choices.length, 3);
  for (const choice of reply.choices) {
    assert.ok(choice.logprobs.content.every((t) => t.logprob <= 0 && t.top_logprobs.length === 3));
  }
  const again = await client.chat.completions.create({ model, messages: define, temperature: 1, seed: 7, n: 3, max_tokens: 8 });
  assert.deepEqual(again.choices.map((c) => c.message.content), reply.choices.map((c) => c.message.content));
  const plain = await client.chat.completions.create({ model, messages: define, temperature: 0, max_tokens: 30 });
  const word = plain.choices[0].message.content.trim().split(/\s+/)[2];
  const stopped = await client.chat.completions.create({ model, messages: define, temperature: 0, max_tokens: 30, stop: [word] });
  const text = plain.choices[0].message.content;
  assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(word)));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
});

test('text completions', async () => {
  const request = { model, prompt: ['In the beginning', 'And God said'], temperature: 0, max_tokens: 8, logprobs: 2 };
  const reply = await client.completions.create(request);
  assert.equal(reply.choices.length, 2);
  assert.ok(reply.choices[0].text.length > 0);
  assert.equal(reply.choices[0].logprobs.tokens.length, reply.choices[0].logprobs.token_logprobs.length);
  const stream = await client.completions.create({ ...request, stream: true });
  const texts = ['', ''];
  for await (const chunk of stream) for (const c of chunk.choices) texts[c.index] += c.text;
  assert.deepEqual(texts, reply.choices.map((c) => c.text));
  const echo = await client.completions.create({ model, prompt: 'In the beginning', echo: true, max_tokens: 2, temperature: 0 });
  assert.ok(echo.choices[0].text.startsWith('In the beginning'));
});

test('responses: text, stream, tools, schema', async () => {
  const reply = await client.responses.create({ model, input: 'Define hope.', temperature: 0, max_output_tokens: 40 });
  assert.ok(reply.output_text.length > 5);
  assert.ok(reply.usage.output_tokens > 0);
  const stream = await client.responses.create({
    model, input: 'Define hope.', temperature: 0, max_output_tokens: 40, stream: true });
  let text = '';
  let next = 0;
  const types = [];
  for await (const event of stream) {
    assert.equal(event.sequence_number, next++);
    types.push(event.type);
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  assert.equal(text, reply.output_text);
  assert.equal(types[0], 'response.created');
  assert.ok(['response.completed', 'response.incomplete'].includes(types.at(-1)));
  const flat = [{ type: 'function', strict: true, ...weather }];
  const call = await client.responses.create({ model, input: weatherQuestion, tools: flat, temperature: 0, max_output_tokens: 100 });
  const item = call.output.find((o) => o.type === 'function_call');
  assert.equal(item.name, 'get_weather');
  const answer = await client.responses.create({
    model, tools: flat, temperature: 0, max_output_tokens: 40,
    input: [{ role: 'user', content: weatherQuestion }, item,
            { type: 'function_call_output', call_id: item.call_id, output: JSON.stringify(weatherResult) }] });
  assert.ok(answer.output_text.length > 0);
  const json = await client.responses.create({
    model, input: 'Describe a person.', temperature: 0, max_output_tokens: 200,
    text: { format: { type: 'json_schema', name: 'person', schema: personSchema, strict: true } } });
  assert.ok(Number.isInteger(JSON.parse(json.output_text).age));
});

test('errors have the right class and name the field', async () => {
  await assert.rejects(client.chat.completions.create({ model: 'no-such-model', messages: define }),
                       (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found');
  await assert.rejects(client.chat.completions.create({ model, messages: define, temperature: 9 }),
                       (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
  await assert.rejects(client.chat.completions.create({ model, messages: [{ role: 'robot', content: 'x' }] }),
                       (e) => e instanceof OpenAI.BadRequestError && e.param === 'messages[0].role');
  await assert.rejects(
    client.chat.completions.create({ model, messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }),
    (e) => e instanceof OpenAI.BadRequestError && e.param === 'messages[0].content[0].type');
  await assert.rejects(
    client.chat.completions.create({ model, messages: [{ role: 'user', content: 'word '.repeat(9000) }] }),
    (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test('an aborted stream frees its slot', async () => {
  const stream = await client.chat.completions.create({
    model, messages: define, temperature: 0, max_tokens: 3000, ignore_eos: true, stream: true });
  let n = 0;
  for await (const chunk of stream) {
    if (chunk.choices.length && ++n === 3) break;
  }
  stream.controller.abort();
  for (let i = 0; i < 50; ++i) {
    const slots = await (await fetch(`${url}/slots`, { headers: { authorization: `Bearer ${key}` } })).json();
    if (!slots.some((s) => s.is_processing)) return;
    await new Promise((r) => setTimeout(r, 20));
  }
  assert.fail('the request still runs after a second');
});
