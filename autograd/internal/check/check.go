// Package check checks arguments for autograd and the packages below it.
package check

import (
	"context"
	"fmt"
	"reflect"

	"github.com/cistern-ml/cistern/device"
)

// Context returns an error that begins with op, "package: call", if ctx is nil.
func Context(op string, ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%s: %w: the context is nil; use context.Background()", op, device.ErrInvalid)
	}
	return nil
}

// Nil reports whether x is nil, or a nil pointer, function, map or slice.
func Nil(x any) bool {
	v := reflect.ValueOf(x)
	switch v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Interface, reflect.Chan:
		return v.IsNil()
	}
	return x == nil
}

// Or returns *p, or standard if p is nil.
func Or[T any](p *T, standard T) T {
	if p == nil {
		return standard
	}
	return *p
}
