"""Dozens of real brokers on a small machine: all of them in one process."""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from pathlib import Path
from typing import Final

from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.spawn import spawn

PROGRAM: Final = Path(__file__).with_name("Together.java")
JAVA_HEAP_OPTIONS: Final = ("-Xmx3g",)
CONTROLLER_ID: Final = 1


class ManyBrokers(KafkaCluster):
    """Like `KafkaCluster`. The first broker is the only controller, and all brokers live and die together."""

    def launch(self) -> None:
        self._write_properties()
        for broker_id in self.brokers:
            path = self._properties(broker_id)
            path.write_text(self._alone(broker_id, path.read_text()))
        self.format_storage()
        files = [str(self._properties(broker_id)) for broker_id in self.brokers]
        command = self._java(JAVA_HEAP_OPTIONS, str(PROGRAM), *files)
        process = spawn(command, self.log(CONTROLLER_ID), cwd=self._folder)
        self._processes = dict.fromkeys(self.brokers, process)

    def _alone(self, broker_id: int, properties: str) -> str:
        """One controller and small brokers, because each of them has its own threads and files."""
        voters = f"{CONTROLLER_ID}@{self.listener('CONTROLLER_ID', CONTROLLER_ID)}"
        text = re.sub(
            r"(?m)^controller\.quorum\.voters=.*$", f"controller.quorum.voters={voters}", properties
        )
        if broker_id != CONTROLLER_ID:
            text = text.replace("process.roles=broker,controller", "process.roles=broker")
            text = re.sub(r"(?m)^(listeners=.*?),CONTROLLER://[^,\n]*", r"\1", text)
        # librdkafka 2.16.1 cannot read Metadata of 60 brokers with racks: "Not enough room in tmpabuf".
        text = re.sub(r"(?m)^broker\.rack=.*\n", "", text)
        return text + "log.cleaner.enable=false\nbackground.threads=1\nnum.recovery.threads.per.data.dir=1\n"

    def format_storage(self) -> None:
        """Format the controller's folder, and copy it for the others: a process for each takes minutes."""
        all_of_them = self.brokers
        self.brokers = {CONTROLLER_ID: all_of_them[CONTROLLER_ID]}
        try:
            super().format_storage()
        finally:
            self.brokers = all_of_them
        made = self._data(CONTROLLER_ID)
        for broker_id in self.brokers.keys() - {CONTROLLER_ID}:
            shutil.copytree(made, self._data(broker_id))
            meta = self._data(broker_id) / "meta.properties"
            identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            text = re.sub(r"(?m)^node\.id=.*$", f"node.id={broker_id}", meta.read_text())
            meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={identity}", text))
