// Package dryhost lets package dry create host devices without memory and without arithmetic.
package dryhost

import "github.com/cistern-ml/cistern/device"

// Config configures such a device.
type Config struct {
	// Capacity is the device's memory in bytes. 0 means the default of a host device.
	Capacity int64
	// Addresses is the limit of all reservations in bytes. 0 means that of a host device.
	Addresses int64
	// Front wraps the device for the program: streams, graphs and communicators return the wrapper
	// as their device.
	Front func(below device.Device) device.Device
}

// New opens a device and returns its wrapper. Package host sets it.
//
// Such a device never uses an address twice. Its calls are checked like those of any host device.
// Launches may have a Kernel instead of a Func, and run neither. Operations are complete when the
// host waits for the device or frees memory, or when a stream's queue is full; only the functions
// of OnDone run at once. Copies write zeros to host memory. A communicator does not wait for other
// ranks, and exchanges nothing.
var New func(Config) (device.Device, error)
