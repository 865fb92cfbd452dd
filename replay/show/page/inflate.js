// Unpacks gzip (RFC 1952, RFC 1951) at once. A DecompressionStream would answer later, after the page counts as loaded:
// screenshots and printers would then find empty charts.

const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const DISTANCES = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097,
  6145, 8193, 12289, 16385, 24577];
const CODE_LENGTHS = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]; // the order of their lengths
const GZIP_HEADER = 10; // bytes, where no flag is set

// Table of a canonical Huffman code: by the next `bits` bits, the symbol times 16 plus the length of its code.
function huffman(lengths) {
  const bits = Math.max(...lengths, 1);
  const table = new Uint16Array(1 << bits);
  let code = 0;
  for (let length = 1; length <= bits; length++, code <<= 1) {
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let reversed = 0;
      for (let bit = 0; bit < length; bit++) reversed |= ((code >> bit) & 1) << (length - 1 - bit);
      for (let place = reversed; place < table.length; place += 1 << length) table[place] = symbol * 16 + length;
      code++;
    }
  }
  return { table, bits };
}

const FIXED = [
  huffman([].concat(Array(144).fill(8), Array(112).fill(9), Array(24).fill(7), Array(8).fill(8))),
  huffman(Array(30).fill(5)),
];

class BitReader {
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
    this.held = 0;
    this.count = 0;
  }

  fill(bits) {
    while (this.count < bits) {
      this.held |= (this.bytes[this.at++] || 0) << this.count;
      this.count += 8;
    }
  }

  take(bits) {
    this.fill(bits);
    const value = this.held & ((1 << bits) - 1);
    this.held >>>= bits;
    this.count -= bits;
    return value;
  }

  symbol({ table, bits }) {
    this.fill(bits);
    const entry = table[this.held & (table.length - 1)];
    if (!(entry & 15)) throw new Error("the page is damaged");
    this.held >>>= entry & 15;
    this.count -= entry & 15;
    return entry >> 4;
  }

  toByte() {
    this.at -= this.count >> 3;
    this.held = this.count = 0;
  }
}

function codesOf(bits) {
  const [literals, distances, count] = [bits.take(5) + 257, bits.take(5) + 1, bits.take(4) + 4];
  const lengths = Array(19).fill(0);
  for (let place = 0; place < count; place++) lengths[CODE_LENGTHS[place]] = bits.take(3);
  const code = huffman(lengths);
  const found = [];
  while (found.length < literals + distances) {
    const symbol = bits.symbol(code);
    if (symbol < 16) found.push(symbol);
    else {
      const [length, times] = symbol === 16 ? [found.at(-1), 3 + bits.take(2)]
        : symbol === 17 ? [0, 3 + bits.take(3)] : [0, 11 + bits.take(7)];
      for (let again = 0; again < times; again++) found.push(length);
    }
  }
  return [huffman(found.slice(0, literals)), huffman(found.slice(literals))];
}

function gunzip(bytes) {
  if (bytes[0] !== 31 || bytes[1] !== 139 || bytes[3]) throw new Error("the page is damaged");
  const found = new Uint8Array(new DataView(bytes.buffer, bytes.byteOffset + bytes.length - 4).getUint32(0, true));
  const bits = new BitReader(bytes, GZIP_HEADER);
  let size = 0;
  for (let last = 0; !last;) {
    last = bits.take(1);
    const kind = bits.take(2);
    if (kind === 0) {
      bits.toByte();
      const length = bits.take(8) | (bits.take(8) << 8);
      found.set(bytes.subarray(bits.at + 2, bits.at + 2 + length), size);
      bits.at += 2 + length;
      size += length;
      continue;
    }
    const [literals, distances] = kind === 1 ? FIXED : codesOf(bits);
    for (let symbol = bits.symbol(literals); symbol !== 256; symbol = bits.symbol(literals)) {
      if (symbol < 256) {
        found[size++] = symbol;
        continue;
      }
      const place = symbol - 257;
      const length = LENGTHS[place] + (place < 8 || place === 28 ? 0 : bits.take((place >> 2) - 1));
      const far = bits.symbol(distances);
      const back = DISTANCES[far] + (far < 4 ? 0 : bits.take((far >> 1) - 1));
      for (const end = size + length; size < end; size++) found[size] = found[size - back];
    }
  }
  return found;
}
