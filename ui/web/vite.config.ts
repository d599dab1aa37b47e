import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The server puts a nonce of its own in place of NONCE, into each answer.
export default defineConfig({
  plugins: [react()],
  html: { cspNonce: "NONCE" },
  build: { assetsInlineLimit: 0, chunkSizeWarningLimit: 1000, license: { fileName: "licences.md" } },
  server: { proxy: Object.fromEntries(["/api", "/static", "/docs", "/metrics"].map((path) => [path, { target: "http://127.0.0.1:18083", ws: true }])) },
});
