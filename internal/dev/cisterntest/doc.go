// Package cisterntest has helpers for tests of several packages: devices, streams that wait, and,
// in the packages below it, a stack on a device (stacktest), tests in child processes (child) and
// others.
//
// It imports only device and device/host, so that the tests of memcache can use it from inside
// their package. stacktest is for the packages above.
package cisterntest
