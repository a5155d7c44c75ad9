"""JobService: the application's Jobs over gRPC."""
# ruff: noqa: N802 - the protos name the methods

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.common.v1 import plan_pb2
from planaria.api.coordinator.v1 import job_service_pb2 as pb
from planaria.api.coordinator.v1 import job_service_pb2_grpc, resources_pb2
from planaria_common.messages import from_message, from_struct, to_message
from planaria_coordinator.application.jobs.jobs import Jobs
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.entrypoints.streams import until_stopped

Context = grpc.aio.ServicerContext[Any, Any]


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Serves `planaria.api.coordinator.v1.JobService`."""

    def __init__(self, jobs: Jobs, *, stopping: asyncio.Event) -> None:
        self._jobs = jobs
        self._stopping = stopping

    async def CreateJob(
        self, request: pb.CreateJobRequest, _context: Context
    ) -> pb.CreateJobResponse:
        submission = await self._jobs.create(
            from_struct(request.spec),
            request_id=request.request_id,
            dry_run=request.dry_run,
            resume_job_id=request.resume_job_id,
        )
        plan = None if submission.plan is None else to_message(submission.plan, plan_pb2.Plan)
        return pb.CreateJobResponse(job=to_message(submission.job, resources_pb2.Job), plan=plan)

    async def GetJob(self, request: pb.GetJobRequest, _context: Context) -> pb.GetJobResponse:
        return pb.GetJobResponse(
            job=to_message(await self._jobs.get(request.job_id), resources_pb2.Job)
        )

    async def ListJobs(self, request: pb.ListJobsRequest, _context: Context) -> pb.ListJobsResponse:
        page = await self._jobs.list(from_message(request, PageRequest))
        jobs = [to_message(job, resources_pb2.Job) for job in page.items]
        return pb.ListJobsResponse(jobs=jobs, next_page_token=page.next_page_token)

    async def CancelJob(
        self, request: pb.CancelJobRequest, _context: Context
    ) -> pb.CancelJobResponse:
        job = await self._jobs.cancel(request.job_id, request_id=request.request_id)
        return pb.CancelJobResponse(job=to_message(job, resources_pb2.Job))

    async def PauseJob(self, request: pb.PauseJobRequest, _context: Context) -> pb.PauseJobResponse:
        job = await self._jobs.pause(request.job_id, request_id=request.request_id)
        return pb.PauseJobResponse(job=to_message(job, resources_pb2.Job))

    async def ResumeJob(
        self, request: pb.ResumeJobRequest, _context: Context
    ) -> pb.ResumeJobResponse:
        job = await self._jobs.resume(request.job_id, request_id=request.request_id)
        return pb.ResumeJobResponse(job=to_message(job, resources_pb2.Job))

    async def GetJobPlan(
        self, request: pb.GetJobPlanRequest, _context: Context
    ) -> pb.GetJobPlanResponse:
        record = await self._jobs.plan(request.job_id)
        if record is None or record.plan is None:
            return pb.GetJobPlanResponse()
        return pb.GetJobPlanResponse(
            plan=to_message(record.plan, plan_pb2.Plan),
            generation=record.generation,
            reason=record.reason,
        )

    async def ListJobMetrics(
        self, request: pb.ListJobMetricsRequest, _context: Context
    ) -> pb.ListJobMetricsResponse:
        page = await self._jobs.metrics(request.job_id, from_message(request, PageRequest))
        metrics = [to_message(each, resources_pb2.StepMetrics) for each in page.items]
        return pb.ListJobMetricsResponse(metrics=metrics, next_page_token=page.next_page_token)

    async def ListJobRecoveries(
        self, request: pb.ListJobRecoveriesRequest, _context: Context
    ) -> pb.ListJobRecoveriesResponse:
        page = await self._jobs.recoveries(request.job_id, from_message(request, PageRequest))
        recoveries = [to_message(each, resources_pb2.Recovery) for each in page.items]
        return pb.ListJobRecoveriesResponse(
            recoveries=recoveries, next_page_token=page.next_page_token
        )

    async def ListJobLogs(
        self, request: pb.ListJobLogsRequest, _context: Context
    ) -> pb.ListJobLogsResponse:
        page = await self._jobs.logs(request.job_id, from_message(request, PageRequest))
        lines = [to_message(line, resources_pb2.LogLine) for line in page.items]
        return pb.ListJobLogsResponse(lines=lines, next_page_token=page.next_page_token)

    async def WatchJob(
        self, request: pb.WatchJobRequest, _context: Context
    ) -> AsyncIterator[pb.WatchJobResponse]:
        views = self._jobs.watch(request.job_id, after_sequence=request.after_sequence)
        async for view in until_stopped(views, stopping=self._stopping):
            if view is not None:
                yield to_message(view, pb.WatchJobResponse)
