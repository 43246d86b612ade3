// Files of numpy, as far as streams need them: rows first, one array.

const KINDS = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "<i8": BigInt64Array, "<i2": Int16Array, "|u1": Uint8Array, "|i1": Int8Array, "|b1": Uint8Array };
const NAMES = { float32: "<f4", float64: "<f8", int32: "<i4", int64: "<i8", int16: "<i2", uint8: "|u1", int8: "|i1", bool: "|b1" };

export function readNpy(buffer, dtype) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("this is no .npy file");
  const long = bytes[6] > 1, view = new DataView(buffer);
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true), begin = (long ? 12 : 10) + length;
  const head = new TextDecoder().decode(bytes.subarray(long ? 12 : 10, begin));
  const kind = /'descr': *'([^']+)'/.exec(head)?.[1], order = /'fortran_order': *True/.test(head);
  if (kind !== NAMES[dtype] || order) throw new Error(`the file must hold ${dtype}, row by row; it holds ${kind}`);
  const shape = (/'shape': *\(([^)]*)\)/.exec(head)?.[1] ?? "").split(",").filter((s) => s.trim()).map(Number);
  return { data: new KINDS[kind](buffer.slice(begin)), shape };
}

export function writeNpy({ data, shape }, dtype) {
  const tuple = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  let head = `{'descr': '${NAMES[dtype]}', 'fortran_order': False, 'shape': ${tuple}, }`;
  head += " ".repeat(63 - ((10 + head.length) % 64)) + "\n";
  const text = new TextEncoder().encode(head), out = new Uint8Array(10 + text.length + data.byteLength);
  out.set([0x93, 78, 85, 77, 80, 89, 1, 0, text.length & 255, text.length >> 8]);
  out.set(text, 10);
  out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + text.length);
  return out.buffer;
}
