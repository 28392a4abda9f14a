import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, tool } from 'ai';
import fs from 'node:fs';

// Goes on with a conversation that has a picture, a PDF and calls of two MCP servers in it.
const [root, , cloud] = process.argv.slice(2);
const { PIXEL, PDF, MCP, ASK, SAW, SCHEMA } = JSON.parse(fs.readFileSync(cloud, 'utf8'));
const model = createOpenAICompatible({ name: 'proxy', baseURL: root + '/v1', apiKey: 'none', includeUsage: true })('scripted');
const tools = Object.fromEntries(MCP.map(name => [name, tool({ description: 'Reads.', inputSchema: jsonSchema(SCHEMA) })]));
const call = (toolName, n) => ({ type: 'tool-call', toolCallId: 'call_' + n, toolName, input: { path: 'a.txt' } });
const result = (toolName, n) => ({ type: 'tool-result', toolCallId: 'call_' + n, toolName, output: { type: 'text', value: 'read it' } });
const messages = [
  { role: 'user', content: [{ type: 'file', data: PIXEL, mediaType: 'image/png' }, { type: 'file', data: PDF, mediaType: 'application/pdf', filename: 'report.pdf' }, { type: 'text', text: ASK }] },
  { role: 'assistant', content: [{ type: 'reasoning', text: 'I look.' }, { type: 'text', text: SAW }] },
  { role: 'user', content: 'Read both.' },
  { role: 'assistant', content: MCP.map(call) },
  { role: 'tool', content: MCP.map(result) },
  { role: 'assistant', content: 'One is there.' },
];
for (const ask of ['Go on.', 'And now?']) {
  messages.push({ role: 'user', content: ask });
  const said = await generateText({ model, messages, tools, maxOutputTokens: 8, maxRetries: 0 });
  messages.push({ role: 'assistant', content: said.text || '.' });
  console.log(said.finishReason);
}
