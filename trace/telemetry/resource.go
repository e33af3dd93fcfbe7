package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// describe describes the program, its process and its machine. The variables OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES come last, so that they override the rest. The command line is left out
// because it may contain secrets.
func describe(ctx context.Context, service string) (*resource.Resource, error) {
	r, err := resource.New(ctx,
		resource.WithSchemaURL(semconv.SchemaURL),
		resource.WithService(),
		resource.WithAttributes(semconv.ServiceName(service)),
		resource.WithTelemetrySDK(),
		resource.WithHost(), resource.WithHostID(), resource.WithOSType(), resource.WithContainer(),
		resource.WithProcessPID(), resource.WithProcessExecutableName(),
		resource.WithProcessRuntimeName(), resource.WithProcessRuntimeVersion(),
		resource.WithFromEnv(),
	)
	if errors.Is(err, resource.ErrPartialResource) || errors.Is(err, resource.ErrSchemaURLConflict) {
		return r, nil // what was not found is missing, such as host.id in a container
	}
	return r, err
}
