// Package cisterntest is what tests of several packages need: devices, streams that wait, and, in the packages below
// it, everything that stands on a device (stacktest) and tests that run in processes of their own (child).
//
// It imports device and device/host alone, so that the tests of memcache can use it from inside their package; stacktest
// is for the packages above.
package cisterntest
