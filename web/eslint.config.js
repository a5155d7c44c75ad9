import jsxA11y from "eslint-plugin-jsx-a11y";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "src/services/schema.d.ts"] },
  {
    files: ["src/**/*.{ts,tsx}"],
    extends: [
      tseslint.configs.strictTypeChecked,
      reactHooks.configs.flat["recommended-latest"],
      jsxA11y.flatConfigs.strict,
    ],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      "max-lines": ["error", 250],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
);
