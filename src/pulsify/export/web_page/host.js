// The folder of the export, on its host.

export const WHOLE = "host the whole folder of the export: python -m http.server -d FOLDER";

/** A file of it, or an error that says what to do. */
export async function fetched(name) {
  const found = await fetch(new URL(`./${name}`, import.meta.url));
  if (!found.ok) throw new Error(`${name} is not there (${found.status} of the host): ${WHOLE}`);
  return found;
}
