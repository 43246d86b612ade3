// Files of numpy, as far as streams need them: rows first, one array.

import { ARRAYS, size, wanted } from "./frames.js";

const NAMES = {
  float32: "<f4", float64: "<f8", int8: "|i1", uint8: "|u1", int16: "<i2", uint16: "<u2", int32: "<i4", uint32: "<u4",
  int64: "<i8", uint64: "<u8", bool: "|b1",
};

/** The array of a file for a port; one of a single axis is taken as time where all other axes are of size one. */
export function readNpy(buffer, port) {
  const { kind, columns, shape, begin } = header(buffer);
  if (kind !== NAMES[port.dtype]) throw new Error(`${wanted(port)} (${NAMES[port.dtype]}), the file holds ${kind}: save it with .astype("${port.dtype}")`);
  if (columns) throw new Error(`${wanted(port)}, row by row; the file is column by column: save numpy.ascontiguousarray of it`);
  const plain = shape.length === 1 && port.axis !== undefined && port.shape.every((n, a) => a === port.axis || n === 1);
  const found = plain ? port.shape.map((n, a) => (a === port.axis ? shape[0] : n)) : shape;
  if (found.length !== port.shape.length || found.some((n, a) => a !== port.axis && n !== port.shape[a])) {
    throw new Error(`${wanted(port)}, the file holds [${shape.join(", ")}]: save it with .reshape`);
  }
  const there = buffer.byteLength - begin, needed = size(shape) * ARRAYS[port.dtype].BYTES_PER_ELEMENT;
  if (there < needed) throw new Error(`the file is cut short: [${shape.join(", ")}] of ${port.dtype} is ${needed} bytes, it has ${there}`);
  return { data: new ARRAYS[port.dtype](buffer.slice(begin, begin + needed)), shape: found };
}

function header(buffer) {
  const bytes = new Uint8Array(buffer), view = new DataView(buffer), none = new Error("this is no .npy file");
  if (bytes.length < 12 || bytes[0] !== 0x93 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw none;
  const long = bytes[6] > 1, start = long ? 12 : 10, begin = start + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  const text = new TextDecoder().decode(bytes.subarray(start, begin)), sizes = /'shape': *\(([^)]*)\)/.exec(text)?.[1];
  const kind = /'descr': *'([^']+)'/.exec(text)?.[1], shape = sizes?.split(",").filter((s) => s.trim()).map(Number);
  if (begin > bytes.length || !kind || !shape?.every(Number.isSafeInteger)) throw none;
  return { kind, columns: /'fortran_order': *True/.test(text), shape, begin };
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
