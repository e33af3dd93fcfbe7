// Package watch lets package backendtest wrap the backend of a runtime.
package watch

import "github.com/cistern-ml/cistern/tensor/backend"

// Backend replaces the backend of a *tensor.Runtime by wrap's result. No goroutine may use the
// runtime yet. Package tensor sets Backend.
var Backend func(runtime any, wrap func(next backend.Backend) backend.Backend)
