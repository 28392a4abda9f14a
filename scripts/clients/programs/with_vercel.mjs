import { execSync } from 'node:child_process';
import fs from 'node:fs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const [root, project] = process.argv.slice(2);
process.chdir(project);
const model = createOpenAICompatible({ name: 'proxy', baseURL: root + '/v1', apiKey: 'none', includeUsage: true })('scripted');
const run = (description, key, execute) => tool({ description, inputSchema: z.object({ [key]: z.string() }), execute });
const tools = {
  bash: run('Run a command', 'command', async a => execSync(a.command, { encoding: 'utf8' })),
  read_file: run('Read a file', 'path', async a => fs.readFileSync(a.path, 'utf8')),
};
const messages = [];
for (const prompt of [process.env.PROMPT, process.env.AGAIN]) {
  messages.push({ role: 'user', content: prompt });
  const result = await generateText({ model, system: 'You are a helper.', messages, tools, stopWhen: stepCountIs(60), maxRetries: 0 });
  for (const step of result.steps) messages.push(...step.response.messages.slice(-2).filter(m => !messages.includes(m)));
  console.log(result.text);
}
