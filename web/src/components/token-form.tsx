import { useQueryClient } from "@tanstack/react-query";
import { type SyntheticEvent, useId, useState } from "react";
import { writeToken } from "../services/token";

/** Shown where the coordinator asks who is reading: it does so when it listens beyond loopback. */
export function TokenForm() {
  const queries = useQueryClient();
  const field = useId();
  const [token, setToken] = useState("");
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    writeToken(token.trim());
    void queries.resetQueries();
  };
  return (
    <form className="token" onSubmit={submit}>
      <label htmlFor={field}>
        The coordinator asks for the cluster token: the file <code>token</code> in its data
        directory
      </label>
      <input
        id={field}
        type="password"
        autoComplete="off"
        value={token}
        onChange={(event) => {
          setToken(event.target.value);
        }}
      />
      <button type="submit" disabled={token.trim() === ""}>
        Use it in this tab
      </button>
    </form>
  );
}
