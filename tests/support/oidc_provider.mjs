// An issuer for tests: oidc-provider with its development pages, where any login is accepted.
// Arguments: node_modules, port, the address that the broker is returned to.

import { pathToFileURL } from "node:url";

const [modules, port, redirect] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`));
const GROUPS = { ann: ["plant", "sluice-operators"], root: ["sluice-admins"], eve: ["visitors"] };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    { client_id: "sluice", client_secret: "a secret of the client", redirect_uris: [redirect] },
    { client_id: "other", client_secret: "another secret of a client", redirect_uris: [redirect] },
  ],
  scopes: ["openid", "profile", "groups"],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  findAccount: (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, preferred_username: id, groups: GROUPS[id] ?? [] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
