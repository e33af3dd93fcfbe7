// What the kernels of recurrent layers share.

#pragma once

#include "kernels.h"

static __device__ double sigmoid(double d) {
	if (d >= 0)
		return 1 / (1 + exp(-d));
	d = exp(d);
	return d / (1 + d);
}

template <class T> static __device__ double element(const T *s, u64 i) { return s ? (double)s[i] : 0; }

// lstm_step_grad makes the gradients of their sums of gates, from those of the state, d, and of the
// cell state, carry, and from the cell states before and after. It returns that of the one before.
static __device__ double lstm_step_grad(double (&gates)[4], double d, double carry, double before, double after) {
	double in = gates[0], forget = gates[1], cell = gates[2], out = gates[3], s = tanh(after);
	double dc = carry + d * out * ((1 - s) * (1 + s));
	gates[0] = dc * cell * in * (1 - in);
	gates[1] = dc * before * forget * (1 - forget);
	gates[2] = dc * in * ((1 - cell) * (1 + cell));
	gates[3] = d * s * out * (1 - out);
	return dc * forget;
}
