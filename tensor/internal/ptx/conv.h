// Shared by the kernels of convolutions.

#pragma once

#include "kernels.h"

// plan is plan.Conv: images, groups, channels of x and y in a group, heights and widths of x, y
// and the window, strides, padding, dilations.
struct plan {
	i64 n, groups, c, k, h, w, p, q, r, s, sh, sw, ph, pw, dh, dw;
};

// several is neighbours that one instruction reads.
template <class T, int n> struct __align__(n *sizeof(T) < 16 ? n * sizeof(T) : 16) several { T v[n]; };
