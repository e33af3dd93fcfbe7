// Package launch builds launches of compiled kernels, and caches the handles of these kernels.
package launch
