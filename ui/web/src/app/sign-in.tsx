// Signing in: with the link that the server prints, or with the token, which is exchanged for a session.

import { type FormEvent, useState } from "react";
import { connect } from "../api/channel";
import { Refused, signIn } from "../api/client";
import { Failure } from "../parts/card";

/** The address had a code, which the server has exchanged, or refused, by now; it is not kept in the address. */
const hadCode = new URLSearchParams(location.search).has("code");
if (hadCode) history.replaceState(null, "", location.pathname + location.hash);

export function SignIn({ wasSignedIn }: { wasSignedIn: boolean }) {
  const [problem, setProblem] = useState("");
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    setProblem("");
    const token = String(new FormData(event.currentTarget).get("token"));
    try {
      await signIn(token);
      connect();
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : "The server does not answer. Check that it is running.");
    }
  };
  const why = wasSignedIn
    ? "The session is over; sign in again."
    : hadCode
      ? "The code in this link was used already, or is older than ten minutes."
      : "Enter the API token. The demo also prints a link that signs you in; it works once, for ten minutes.";
  return (
    <main className="narrow">
      <section className="card" aria-label="Sign in">
        <h1>Sign in</h1>
        <p>{why}</p>
        <form onSubmit={submit}>
          <input type="text" name="username" autoComplete="username" defaultValue="administrator" hidden />
          <label htmlFor="token">API token</label>
          <input id="token" name="token" type="password" autoComplete="current-password" spellCheck={false} required />
          <button type="submit" className="primary">
            Sign in
          </button>
          <Failure>{problem}</Failure>
        </form>
        <p className="muted small">
          The token is <code>SLUICE_API_TOKEN</code> where that is set, else the one the server keeps in{" "}
          <code>api.token</code> in its data directory. It is exchanged for a session of twelve hours and stored
          nowhere.
        </p>
      </section>
    </main>
  );
}
