// In the audio thread: "tap" forwards its input, "player" plays chunks once enough of them are buffered.

class Tap extends AudioWorkletProcessor {
  constructor({processorOptions}) {
    super();
    this.held = new Float32Array(processorOptions.size);
    this.count = 0;
  }

  process([channels]) {
    if (!channels.length) return true;
    const length = channels[0].length;
    for (let i = 0; i < length; i++) {
      let sum = 0;
      for (const channel of channels) sum += channel[i];
      this.held[this.count++] = sum / channels.length;
      if (this.count === this.held.length) {
        this.port.postMessage(this.held.slice());
        this.count = 0;
      }
    }
    return true;
  }
}

class Player extends AudioWorkletProcessor {
  constructor({processorOptions}) {
    super();
    this.before = processorOptions.before; // samples to buffer before starting, and after a gap
    this.line = [];
    this.at = this.there = 0;
    this.playing = this.last = false;
    this.port.onmessage = ({data}) => {
      if (data === "end") this.last = true;
      else {
        this.line.push(data);
        this.there += data.length;
      }
    };
  }

  process(inputs, [[out]]) {
    if (!this.playing && (this.there >= this.before || this.last)) this.playing = true;
    let i = 0;
    while (this.playing && i < out.length && this.line.length) {
      const first = this.line[0], count = Math.min(out.length - i, first.length - this.at);
      out.set(first.subarray(this.at, this.at + count), i);
      i += count;
      this.at += count;
      this.there -= count;
      if (this.at === first.length) {
        this.line.shift();
        this.at = 0;
      }
    }
    if (i < out.length) this.playing = false;
    if (i < out.length && this.last) this.port.postMessage("done");
    return !(i < out.length && this.last);
  }
}

registerProcessor("tap", Tap);
registerProcessor("player", Player);
