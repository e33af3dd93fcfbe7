// Package leaktest fails tests that leave something open: handles of devices and caches, which
// internal/opened records, devices themselves, goroutines and files.
//
// It imports no package of the module except internal/opened, so that the tests of device/host can
// use it from inside their package.
package leaktest
