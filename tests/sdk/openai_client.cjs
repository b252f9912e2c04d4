// Runs one scenario of the official Node.js client and prints what came of it.
//
// Usage: node openai_client.cjs SCENARIO BASE_URL MODEL; the last line is JSON.
"use strict";

const OpenAI = require("openai").default;

const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "The weather of a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];
const messages = [{ role: "user", content: "ping" }];

const scenarios = {
  async plain(client, model) {
    const answer = await client.chat.completions.create({ model, messages });
    const choice = answer.choices[0];
    return {
      text: choice.message.content,
      finish: choice.finish_reason,
      total_tokens: answer.usage.total_tokens,
    };
  },

  async stream(client, model) {
    let text = "";
    let finish = null;
    const chunks = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of chunks) {
      for (const choice of chunk.choices) {
        text += choice.delta.content ?? "";
        finish = choice.finish_reason ?? finish;
      }
    }
    return { text, finish };
  },

  async tools(client, model) {
    const answer = await client.chat.completions.create({ model, messages, tools });
    const call = answer.choices[0].message.tool_calls[0];
    return {
      finish: answer.choices[0].finish_reason,
      name: call.function.name,
      arguments: JSON.parse(call.function.arguments),
    };
  },

  async stream_tools(client, model) {
    const answer = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
    const call = answer.choices[0].message.tool_calls[0];
    return { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
  },

  async responses(client, model) {
    const answer = await client.responses.create({ model, input: "ping" });
    return { text: answer.output_text, status: answer.status };
  },

  async responses_stream(client, model) {
    const kinds = [];
    const events = client.responses.stream({ model, input: "ping" });
    for await (const event of events) kinds.push(event.type);
    const answer = await events.finalResponse();
    return { text: answer.output_text, status: answer.status, kinds };
  },

  async embeddings(client, model) {
    const answer = await client.embeddings.create({ model, input: ["ping"], encoding_format: "float" });
    return { vector: answer.data[0].embedding };
  },

  async models(client) {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    return { ids };
  },

  async error(client, model) {
    return raised(() => scenarios.plain(client, model));
  },

  async stream_error(client, model) {
    let text = "";
    const told = await raised(async () => {
      const chunks = await client.chat.completions.create({ model, messages, stream: true });
      for await (const chunk of chunks) {
        for (const choice of chunk.choices) text += choice.delta.content ?? "";
      }
    });
    return { ...told, text };
  },

  // A client that leaves after the first piece.
  async abandon(client, model) {
    const chunks = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of chunks) {
      if (chunk.choices[0]?.delta.content) break;
    }
    return { left: true };
  },
};
scenarios.wrong_key = scenarios.error;
scenarios.retry_plain = scenarios.plain;

async function raised(work) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    return {
      class: error.constructor.name,
      status: error.status ?? null,
      code: error.code ?? null,
      type: error.type ?? null,
      request_id: error.requestID ?? null,
      retry_after: error.headers?.get("retry-after") ?? null,
    };
  }
  return { class: null };
}

async function main() {
  const [scenario, baseUrl, model] = process.argv.slice(2);
  const client = new OpenAI({
    baseURL: baseUrl + "/v1",
    apiKey: scenario === "wrong_key" ? "wrong-key" : "sdk-key",
    maxRetries: scenario.startsWith("retry_") ? 2 : 0,
    timeout: 30000,
  });
  const started = Date.now();
  const result = await scenarios[scenario](client, model);
  result.took_ms = Date.now() - started;
  console.log(JSON.stringify(result));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
