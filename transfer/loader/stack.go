package loader

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cistern-ml/cistern/transfer"
)

// part is the part of a sample that is stacked into one field of a batch.
type part struct {
	name  string
	field int     // index in the struct; -1: the sample itself
	slice bool    // the sample has a slice; otherwise the values themselves
	size  uintptr // bytes of the part, or of an element of the slice
}

// partsOf returns the parts of a T, or an error if it can't be stacked.
func partsOf[T any]() ([]part, error) {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Struct {
		p, err := partOf(typ, -1, "the sample")
		return []part{p}, err
	}
	var parts []part
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() {
			p, err := partOf(f.Type, i, f.Name)
			if err != nil {
				return nil, err
			}
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s has no exported fields to stack: %w", typ, transfer.ErrInvalid)
	}
	return parts, nil
}

func partOf(typ reflect.Type, field int, name string) (part, error) {
	of := typ
	if typ.Kind() == reflect.Slice {
		of = typ.Elem()
	}
	if !numbers(of) {
		return part{}, fmt.Errorf("%s, of type %s, can't be stacked: %w: want numbers of a fixed size (int32, not int), or arrays or slices of them, or a Collate",
			name, typ, transfer.ErrInvalid)
	}
	return part{name, field, typ.Kind() == reflect.Slice, of.Size()}, nil
}

// numbers reports whether typ is a number of a fixed size, or an array of such numbers.
func numbers(typ reflect.Type) bool {
	for typ.Kind() == reflect.Array {
		typ = typ.Elem()
	}
	switch typ.Kind() {
	case reflect.Int, reflect.Uint, reflect.Uintptr, reflect.Bool:
		return false
	default:
		return typ.Kind() <= reflect.Complex128 && typ.Kind() != reflect.Invalid
	}
}

// bytes returns the part's memory in a sample.
func (p part) bytes(sample reflect.Value) []byte {
	v := sample
	if p.field >= 0 {
		v = v.Field(p.field)
	}
	if p.slice {
		return unsafe.Slice((*byte)(v.UnsafePointer()), v.Len()*int(p.size))
	}
	return unsafe.Slice((*byte)(v.Addr().UnsafePointer()), p.size)
}

// sizes returns the bytes of each part of a sample.
func sizes[T any](parts []part, sample *T) []int64 {
	all := make([]int64, len(parts))
	for i, p := range parts {
		all[i] = int64(len(p.bytes(reflect.ValueOf(sample).Elem())))
	}
	return all
}

// stack writes each part of the samples, one sample after the other, into its field.
func (b *Batcher[T]) stack(indices []int, samples []T, fields [][]byte) error {
	if len(fields) != len(b.parts) {
		return fmt.Errorf("samples have %d parts, and the sampler %d fields: %w: leave Sampler.Fields out", len(b.parts), len(fields), transfer.ErrRange)
	}
	for k := range samples {
		v := reflect.ValueOf(&samples[k]).Elem()
		for i, p := range b.parts {
			from, n := p.bytes(v), b.Fields[i]
			if int64(len(from)) != n {
				return fmt.Errorf("sample %d: %s has %d bytes: %w: want %d for every sample, or a Collate",
					indices[k], p.name, len(from), transfer.ErrRange, n)
			}
			copy(fields[i][int64(k)*n:], from)
		}
	}
	return nil
}
