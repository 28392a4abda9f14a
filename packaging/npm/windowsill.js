#!/usr/bin/env node
// Starts the windowsill of this platform, which npm installed beside this package.
"use strict";
const { spawn } = require("node:child_process");
const platform = `${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`windowsill-${platform}/bin/windowsill${process.platform === "win32" ? ".exe" : ""}`);
} catch {
  console.error(`error: there is no windowsill for ${platform} in this release\n  hint: if there should be, install again without --no-optional`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// The terminal tells both of Ctrl-C; this process waits for the program's end.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`error: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => (signal ? process.kill(process.pid, signal) : process.exit(code)));
