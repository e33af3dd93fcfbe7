// Package headstart is how package autograd reaches what package tensor does not export.
package headstart

import "github.com/cistern-ml/cistern/device"

// GoFirst lets what is queued next on the stream of a *tensor.Runtime have the multiprocessors
// before what is queued next on s. Package tensor sets it.
var GoFirst func(runtime any, s device.Stream) error
