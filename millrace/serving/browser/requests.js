// The HTTP API, as functions: each gives a document, or throws a Refusal with its sentence.

export class Refusal extends Error {
  constructor(document, status) {
    super(document.error ?? "the server gave no reason");
    this.field = document.field ?? null;
    this.status = status;
  }
}

const ask = async (path, method = "GET", body = undefined) => {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refusal({ error: "the server does not answer: is `millrace serve` still running?" }, 0);
  }
  let document = {};
  try {
    document = await answer.json();
  } catch {
    // An answer without a document has no sentence to show.
  }
  if (!answer.ok) throw new Refusal(document, answer.status);
  return document;
};

export const catalogue = () => ask("/api/catalogue");
export const begin = (question) => ask("/api/plan", "POST", question);
export const job = (name) => ask(`/api/jobs/${name}`);
export const cancel = (name) => ask(`/api/jobs/${name}`, "DELETE");
export const plan = (name) => ask(`/api/plans/${name}`);
export const simulate = (name, changes) => ask("/api/simulate", "POST", { plan: name, what_ifs: changes });
export const step = (name, changes) => ask("/api/step", "POST", { plan: name, what_ifs: changes });

// Calls `work` with the latest value that was given; while one call is under way, only the last of
// the values that come is kept for the next.
export const latest = (work) => {
  let running = false, next = null;
  return async (value) => {
    next = { value };
    if (running) return;
    running = true;
    while (next) {
      const { value: current } = next;
      next = null;
      try {
        await work(current);
      } catch (error) {
        running = false;
        throw error;
      }
    }
    running = false;
  };
};
