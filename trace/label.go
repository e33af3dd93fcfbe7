package trace

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// appendLabel adds a label's attributes, for spans and log records. Metrics have the category
// alone, because modules, steps and tags would make unbounded numbers of series.
func appendLabel(a []attribute.KeyValue, l memcache.Label) []attribute.KeyValue {
	if l == (memcache.Label{}) {
		return a
	}
	if l.Module != "" {
		a = append(a, KeyModule.String(l.Module))
	}
	a = append(a, category(l.Category))
	if l.Step != 0 {
		a = append(a, KeyStep.Int64(l.Step))
	}
	if l.Tags != "" {
		for tag := range strings.SplitSeq(l.Tags, "\n") {
			key, value, _ := strings.Cut(tag, "=")
			a = append(a, attribute.String(TagPrefix+key, value))
		}
	}
	return a
}

// category returns the attribute of a category, in the form that semantic conventions use:
// "optimizer_state".
func category(c memcache.Category) attribute.KeyValue {
	return KeyCategory.String(strings.ReplaceAll(c.String(), " ", "_"))
}
