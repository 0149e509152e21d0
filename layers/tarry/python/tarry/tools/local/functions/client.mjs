// A small Lambda runtime client for Node.js. It imports only what is part of Node.js.
//
// The usage is `node client.mjs HANDLER`, in the directory of the code. AWS's own client, aws-lambda-ric, has a native
// part that must be compiled, so few projects have it.

import { existsSync, readFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { createRequire } from "node:module";
import { dirname, join, resolve as absolute } from "node:path";
import { pathToFileURL } from "node:url";
import { format } from "node:util";

const PREFIX = "/2018-06-01/runtime";
const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const METHODS = { trace: "TRACE", debug: "DEBUG", log: "INFO", info: "INFO", warn: "WARN", error: "ERROR" };
const FIRST_WITHOUT_CALLBACKS = 24;
const UNCAUGHT = 129;
const UNHANDLED = 128;

// Code of the function may replace these.
const now = Date.now;
const { exit, stdout } = process;
const write = stdout.write.bind(stdout);

const logsJson = (process.env.AWS_LAMBDA_LOG_FORMAT ?? "").toUpperCase() === "JSON";
const leastLevel = LEVELS.indexOf((process.env.AWS_LAMBDA_LOG_LEVEL ?? "").toUpperCase());

/** The id of the current invocation, or undefined. */
let requestId;
/** Called when the function has nothing left to do. */
let onIdle = () => {};

class HandlerFault extends Error {
  constructor(name, message, cause) {
    super(message);
    this.name = name;
    this.stack = cause?.stack ?? `${name}: ${message}`;
  }
}

// the Runtime API

const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(":");
const agent = new Agent({ keepAlive: true, maxSockets: 1 }); // its idle connection does not keep the process alive

function call(method, path, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const sent = request({ agent, host, port, method, path: `${PREFIX}/${path}`, headers }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("error", reject);
      answer.on("end", () => resolve({ headers: answer.headers, text: Buffer.concat(parts).toString() }));
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

function post(path, body, errorType) {
  const bytes = Buffer.from(body);
  const headers = { "Content-Type": "application/json", "Content-Length": bytes.length };
  return call("POST", path, bytes, errorType ? { ...headers, "Lambda-Runtime-Function-Error-Type": errorType } : headers);
}

function postError(path, error) {
  const { errorType, errorMessage, stackTrace } = fieldsOf(error);
  return post(path, JSON.stringify({ errorType, errorMessage, trace: stackTrace }), errorType);
}

function fieldsOf(error) {
  if (error instanceof Error || (error && typeof error.stack === "string")) {
    const lines = String(error.stack ?? "").split("\n");
    const own = lines.findIndex((line) => line.includes(import.meta.url));
    const stackTrace = lines.slice(0, own < 0 ? undefined : own).filter((line) => !/^ +at .*\bnode:/.test(line));
    return { errorType: String(error.name ?? "Error"), errorMessage: String(error.message), stackTrace };
  }
  return { errorType: typeof error, errorMessage: format(error), stackTrace: [] };
}

// the handler

function typeOfPackage(directory) {
  for (let folder = directory; ; folder = dirname(folder)) {
    const file = join(folder, "package.json");
    if (existsSync(file)) return JSON.parse(readFileSync(file, "utf8")).type;
    if (folder === dirname(folder)) return undefined;
  }
}

async function load(name) {
  const slash = name.lastIndexOf("/");
  const [, module, attribute] = /^([^.]*)\.(.+)$/.exec(name.slice(slash + 1)) ?? [];
  if (!module) throw new HandlerFault("Runtime.MalformedHandlerName", `Bad handler '${name}': it has no dot`);
  const base = absolute(process.cwd(), name.slice(0, slash + 1), module);
  const file = [".js", ".mjs", ".cjs"].map((ending) => base + ending).find(existsSync);
  if (!file) throw new HandlerFault("Runtime.ImportModuleError", `Error: Cannot find module '${name.slice(0, slash + 1)}${module}'`);
  let exported;
  try {
    const isModule = file.endsWith(".mjs") || (file.endsWith(".js") && typeOfPackage(dirname(file)) === "module");
    exported = isModule ? await import(pathToFileURL(file)) : createRequire(file)(file);
  } catch (error) {
    if (error instanceof SyntaxError) throw new HandlerFault("Runtime.UserCodeSyntaxError", String(error), error);
    if (/_MODULE_NOT_FOUND$|^MODULE_NOT_FOUND$/.test(error?.code ?? "")) {
      throw new HandlerFault("Runtime.ImportModuleError", `Error: ${error.message.split("\n")[0]}`, error);
    }
    throw error;
  }
  const handler = attribute.split(".").reduce((found, each) => found?.[each], exported);
  if (handler === undefined) throw new HandlerFault("Runtime.HandlerNotFound", `${name} is undefined or not exported`);
  if (typeof handler !== "function") throw new HandlerFault("Runtime.HandlerNotFound", `${name} is not a function`);
  const major = Number(/nodejs(\d+)/.exec(process.env.AWS_EXECUTION_ENV ?? "")?.[1] ?? 0);
  if (major >= FIRST_WITHOUT_CALLBACKS && handler.length > 2) {
    const text = `${name} has a third parameter, the callback; Lambda has none from Node.js 24 on: use an async function`;
    throw new HandlerFault("Runtime.CallbackHandlerDeprecated", text);
  }
  return handler;
}

function contextOf(headers) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  return {
    callbackWaitsForEmptyEventLoop: true,
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: process.env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    getRemainingTimeInMillis: () => Math.max(0, deadline - now()),
  };
}

/** Run the handler; return `{value}` or `{error}`. A handler that neither answers nor has anything left to do: null. */
function run(handler, event, context) {
  return new Promise((resolve) => {
    onIdle = () => resolve({ value: null });
    const callback = (error, value) => {
      if (error !== undefined && error !== null) resolve({ error });
      else if (context.callbackWaitsForEmptyEventLoop) onIdle = () => resolve({ value });
      else resolve({ value });
    };
    context.succeed = (value) => resolve({ value });
    context.fail = (error) => resolve({ error: error ?? "handled" });
    context.done = (error, value) => (error ? context.fail(error) : context.succeed(value));
    const answer = handler(event, context, callback);
    if (typeof answer?.then === "function") answer.then(context.succeed, (error) => resolve({ error }));
  }).catch((error) => ({ error }));
}

function marshalled(value) {
  try {
    return JSON.stringify(value === undefined ? null : value) ?? "null";
  } catch (error) {
    throw new HandlerFault("Runtime.JSONStringifyError", `Unable to stringify response body: ${error.message}`, error);
  }
}

// the log, in the two formats of Lambda

function log(level, message, fields = {}) {
  if (leastLevel >= 0 && LEVELS.indexOf(level) < leastLevel) return;
  const timestamp = new Date(now()).toISOString();
  if (logsJson) {
    write(`${json({ timestamp, level, requestId, message, ...fields })}\n`);
  } else {
    const text = [typeof message === "string" ? message : format(message), ...(fields.stackTrace ?? [])].join("\n");
    write(`${[timestamp, requestId ?? "undefined", level, text].join("\t").replaceAll("\n", "\r")}\n`);
  }
}

function json(fields) {
  try {
    return JSON.stringify(fields);
  } catch {
    return JSON.stringify({ ...fields, message: format(fields.message) });
  }
}

function logError(error) {
  const { errorType, errorMessage, stackTrace } = fieldsOf(error);
  log("ERROR", undefined, { errorType, errorMessage, stackTrace });
}

function setUpConsole() {
  for (const [method, level] of Object.entries(METHODS)) {
    console[method] = (...parts) => {
      const error = parts.find((part) => part instanceof Error);
      const shown = parts.map((part) => (part instanceof Error ? `${part.name}: ${part.message}` : part));
      const isObject = parts.length === 1 && typeof shown[0] === "object" && shown[0] !== null;
      log(level, isObject ? shown[0] : format(...shown), error ? fieldsOf(error) : {});
    };
  }
}

// the process

async function die(error, kind, status) {
  const fault = kind ? new HandlerFault(kind, fieldsOf(error).errorMessage, error) : error;
  logError(fault);
  if (requestId !== undefined) await postError(`invocation/${requestId}/error`, fault).catch(() => {});
  exit(status);
}

async function main(name) {
  setUpConsole();
  process.on("beforeExit", () => onIdle());
  let handler;
  try {
    handler = await load(name);
  } catch (error) {
    logError(error);
    await postError("init/error", error);
    exit(1);
  }
  process.on("uncaughtException", (error) => die(error, "", UNCAUGHT));
  process.on("unhandledRejection", (error) => die(error, "Runtime.UnhandledPromiseRejection", UNHANDLED));
  for (;;) {
    const { headers, text } = await call("GET", "invocation/next");
    const context = contextOf(headers);
    requestId = context.awsRequestId;
    process.env._X_AMZN_TRACE_ID = headers["lambda-runtime-trace-id"];
    let { value, error } = await run(handler, JSON.parse(text), context);
    let body;
    try {
      body = marshalled(value);
    } catch (fault) {
      error = fault;
    }
    if (error === undefined) {
      await post(`invocation/${requestId}/response`, body);
    } else {
      logError(error);
      await postError(`invocation/${requestId}/error`, error);
    }
  }
}

await main(process.argv[2]);
