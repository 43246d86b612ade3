// In the audio thread: hands over what the microphone hears, one block at a time.

class Capture extends AudioWorkletProcessor {
  process(inputs) {
    const [channels] = inputs;
    if (channels.length) {
      const mean = new Float32Array(channels[0].length);
      for (const channel of channels) for (let k = 0; k < mean.length; k++) mean[k] += channel[k] / channels.length;
      this.port.postMessage(mean, [mean.buffer]);
    }
    return true;
  }
}

registerProcessor("capture", Capture);
