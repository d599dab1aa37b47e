// Signing in: with the link that the server prints, an account or the token, which are exchanged for a session.

import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { connect } from "../api/channel";
import { beginOidc, Refused, signIn, signInMethods } from "../api/client";
import { Failure } from "../parts/card";

/** The address had a code, which the server has exchanged, or refused, by now; it is not kept in the address. */
const hadCode = new URLSearchParams(location.search).has("code");
if (hadCode) history.replaceState(null, "", location.pathname + location.hash);

export function SignIn({ wasSignedIn }: { wasSignedIn: boolean }) {
  const [problem, setProblem] = useState("");
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    setProblem("");
    const typed = Object.fromEntries(new FormData(event.currentTarget)) as Record<string, string>;
    try {
      await signIn(typed.token ? { token: typed.token } : { name: typed.name, password: typed.password });
      connect();
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : "The server does not answer. Check that it is running.");
    }
  };
  const methods = useQuery({ queryKey: ["sign-in"], queryFn: signInMethods }).data;
  const goToIssuer = async () => {
    setProblem("");
    try {
      location.assign((await beginOidc()).url);
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : "The server does not answer. Check that it is running.");
    }
  };
  const why = wasSignedIn
    ? "The session is over; sign in again."
    : hadCode
      ? "The code in this link was used already, or is older than ten minutes."
      : "Sign in with your account, or with the API token. The demo also prints a link that signs you in; it works once, for ten minutes.";
  return (
    <main className="narrow">
      <section className="card" aria-label="Sign in">
        <h1>Sign in</h1>
        <p>{why}</p>
        <Failure>{problem}</Failure>
        {methods?.oidc && (
          <button type="button" className="primary" onClick={() => void goToIssuer()}>
            {methods.oidc}
          </button>
        )}
        <form onSubmit={submit} aria-label="Account">
          <label htmlFor="name">Name</label>
          <input id="name" name="name" autoComplete="username" spellCheck={false} autoCapitalize="none" required />
          <label htmlFor="password">Password</label>
          <input id="password" name="password" type="password" autoComplete="current-password" required />
          <button type="submit" className="primary">
            Sign in
          </button>
        </form>
        <form onSubmit={submit} aria-label="API token">
          <label htmlFor="token">API token</label>
          <input id="token" name="token" type="password" autoComplete="off" spellCheck={false} required />
          <button type="submit">Sign in with the token</button>
        </form>
        <p className="muted small">
          The token is <code>SLUICE_API_TOKEN</code> where that is set, else the one the server keeps in{" "}
          <code>api.token</code> in its data directory. A session lasts twelve hours; name, password and token are
          stored nowhere.
        </p>
      </section>
    </main>
  );
}
