// Asks a server everything with the official client and prints what came of it as JSON. Run by test_real_clients.py.
import OpenAI from "openai";

const baseURL = process.argv[2];
const client = (conversation, more = {}) =>
  new OpenAI({ baseURL, apiKey: "sk-js", maxRetries: 0, defaultHeaders: { "x-topicality-conversation": conversation }, ...more });
const user = (content) => ({ role: "user", content });
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];

async function failure(work) {
  try {
    await work();
    return { raised: null };
  } catch (error) {
    return { raised: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
  }
}

async function drained(stream) {
  let text = "";
  let finish = null;
  let usage = null;
  for await (const chunk of stream) {
    for (const choice of chunk.choices) {
      text += choice.delta?.content ?? "";
      finish = choice.finish_reason ?? finish;
    }
    usage = chunk.usage ?? usage;
  }
  return { text, finish, usage };
}

const found = {};
const ask = (name, body, more) => client(`js-${name}`, more).chat.completions.create({ model: "m", ...body });

const { data, response } = await client("js-whole").chat.completions.create({ model: "m", messages: [user("a fine day")] }).withResponse();
found.whole = { text: data.choices[0].message.content, action: response.headers.get("x-topicality-action") };

found.stream = await drained(await ask("stream", { stream: true, stream_options: { include_usage: true }, messages: [user("a fine night")] }));

const runner = client("js-helper").chat.completions.stream({ model: "m", messages: [user("a fine evening")] });
found.helper = { text: await runner.finalContent() };

const first = await ask("tools", { tools, messages: [user("call weather")] });
const call = first.choices[0].message.tool_calls[0];
const told = [user("call weather"), first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }];
const second = await ask("tools", { tools, messages: told });
found.tools = { name: call.function.name, arguments: call.function.arguments, text: second.choices[0].message.content };

const streamed = client("js-stream-tools").chat.completions.stream({ model: "m", tools, messages: [user("call weather")] });
const final = await streamed.finalChatCompletion();
found.streamTools = { finish: final.choices[0].finish_reason, arguments: final.choices[0].message.tool_calls[0].function.arguments };

const refused = await ask("refused", { messages: [user("a bad word")] });
found.refused = { text: refused.choices[0].message.content, finish: refused.choices[0].finish_reason, total: refused.usage.total_tokens };
found.refusedStream = await drained(await ask("refused-stream", { stream: true, messages: [user("a bad word")] }));

found.limited = await failure(() => ask("limited", { messages: [user("fail 429")] }));
found.down = await failure(() => ask("down", { messages: [user("fail 500")] }));
found.broken = await failure(async () => drained(await ask("broken", { stream: true, messages: [user("break")] })));
found.malformed = await failure(() => ask("malformed", { messages: [] }));

const controller = new AbortController();
found.left = await failure(async () => {
  const stream = await client("js-left").chat.completions.create(
    { model: "m", stream: true, messages: [user("hang")] },
    { signal: controller.signal },
  );
  for await (const _ of stream) {
    controller.abort();
  }
});

found.models = (await client("js-models").models.list()).data.map((model) => model.id);
console.log(JSON.stringify(found));
