package surface

import (
	"fmt"
	"reflect"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/device"
)

// Nil calls everything with each possible argument nil, with each pointer, interface and function
// in structs and lists nil, and with all arguments zero. No call may panic. A call with a nil
// argument must return an error that wraps device.ErrInvalid, unless that argument is allowed or
// the function returns no error.
func (s *Surface) Nil() {
	s.used = map[string]bool{}
	calls := 0
	for _, f := range s.functions() {
		in := f.in()
		for i, typ := range in {
			for _, hole := range holes(typ) {
				args := s.arguments(in)
				args[i] = hole.in(args[i])
				calls++
				s.refuses(f, args, fmt.Sprint(f.name, " ", i+1, hole.path), s.allowed(f.name, i, typ, hole))
			}
		}
		zero := make([]reflect.Value, len(in))
		for i, typ := range in {
			zero[i] = reflect.Zero(typ)
		}
		calls++
		if panicked, _ := s.call(f, zero); panicked != nil {
			assert.Fail(s.T, "panic", "%s with zero arguments: %v", f.name, panicked)
		}
	}
	for key := range s.Allowed {
		assert.True(s.T, s.used[key], "nothing has %q", key)
	}
	s.T.Logf("%d calls", calls)
}

func (s *Surface) arguments(in []reflect.Type) []reflect.Value {
	args := make([]reflect.Value, len(in))
	for i, typ := range in {
		args[i] = s.valid(typ)
	}
	return args
}

func (s *Surface) refuses(f *function, args []reflect.Value, name string, allowed bool) {
	panicked, err := s.call(f, args)
	switch n := f.typ.NumOut(); {
	case panicked != nil:
		assert.Fail(s.T, "panic", "%s nil: %v", name, panicked)
	case !allowed && n > 0 && f.typ.Out(n-1) == reflect.TypeFor[error]():
		assert.ErrorIs(s.T, err, device.ErrInvalid, "%s nil", name)
	}
}

// allowed reports whether the argument may be nil.
func (s *Surface) allowed(name string, i int, typ reflect.Type, h hole) bool {
	for typ.Kind() == reflect.Slice && typ.Name() == "" {
		typ = typ.Elem()
	}
	for _, key := range []string{fmt.Sprint(name, " ", i+1, h.path), fmt.Sprint(typ.Name(), h.path), h.typ.String()} {
		if s.Allowed[key] != "" {
			s.used[key] = true
			return true
		}
	}
	return false
}

// hole is a part of an argument that can be nil.
type hole struct {
	// ".Field" of a struct, "[]" of an element, "" for the argument itself
	path   string
	typ    reflect.Type
	fields []int
	list   bool
}

// holes returns the holes of a type's values.
func holes(typ reflect.Type) []hole {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Func:
		return []hole{{typ: typ}}
	case reflect.Slice:
		var all []hole
		for _, h := range holes(typ.Elem()) {
			if !h.list { // otherwise it is a list of lists
				h.path, h.list = "[]"+h.path, true
				all = append(all, h)
			}
		}
		return all
	case reflect.Struct:
		var all []hole
		for i := range typ.NumField() {
			if f := typ.Field(i); f.IsExported() {
				for _, h := range holes(f.Type) {
					if !h.list {
						h.path, h.fields = "."+f.Name+h.path, append([]int{i}, h.fields...)
						all = append(all, h)
					}
				}
			}
		}
		return all
	}
	return nil
}

// in returns v with nil in the hole. A list has one element.
func (h hole) in(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	at := c
	if h.list {
		list := reflect.MakeSlice(v.Type(), 1, 1)
		if v.Len() > 0 {
			list.Index(0).Set(v.Index(0))
		}
		c.Set(list)
		at = list.Index(0)
	}
	for _, i := range h.fields {
		at = at.Field(i)
	}
	at.SetZero()
	return c
}
