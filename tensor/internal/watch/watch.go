// Package watch is how package backendtest stands before the backend of a runtime.
package watch

import "github.com/cistern-ml/cistern/tensor/backend"

// Backend puts wrap's result in the place of the backend of a *tensor.Runtime that no goroutine
// uses yet. Package tensor sets it.
var Backend func(runtime any, wrap func(next backend.Backend) backend.Backend)
