import { defineConfig } from "vitest/config";

// `npm run dev` serves the page for a coordinator that runs here (or at PLANARIA_ADDRESS).
const coordinator = process.env["PLANARIA_ADDRESS"] ?? "http://127.0.0.1:8080";

export default defineConfig({
  esbuild: { jsx: "automatic" },
  build: {
    rollupOptions: {
      // Libraries mark modules for servers that render React; a bundle for the browser has no use for it.
      onwarn: (warning, warn) => {
        if (warning.code !== "MODULE_LEVEL_DIRECTIVE") warn(warning);
      },
    },
  },
  server: { host: "127.0.0.1", proxy: { "/api": { target: coordinator, changeOrigin: true } } },
  test: { environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"], restoreMocks: true },
});
